"""Files that could not be stored: the table that keeps them, its list, files met again unchanged. Start: `table`."""
