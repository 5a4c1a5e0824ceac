"""The commits of a table in their order, and the notes that lakelens writes with them. Start: `log_walk.walk_log`."""
