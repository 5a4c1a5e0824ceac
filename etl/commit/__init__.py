"""One batch of rows and removals becomes one Delta commit, or nothing. Start at `transaction.Transaction`."""
