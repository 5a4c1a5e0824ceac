"""What lakelens remembers of a table: class numbers, pins, uses, rows by class, a VACUUM at work. Start: `store`."""
