"""Files that could not be stored: the table that keeps them, and its list. Start: `table`."""
