"""Opening files wherever a table lives, on disks and in object stores, with bounded waits. Start: `data_files`."""
