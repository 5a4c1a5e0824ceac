"""Opening files wherever a table lives, its log too, with bounded waits. Start: `data_files`."""
