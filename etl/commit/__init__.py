"""One batch of rows and removals becomes one Delta commit, or nothing. Door: `commit.open_transaction`."""
