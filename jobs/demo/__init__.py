"""`lakelens demo`: the whole path on scanned digits, in ten steps."""
