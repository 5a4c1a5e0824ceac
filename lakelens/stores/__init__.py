"""Opening files wherever a table lives, on disks and in object stores, with bounded waits. Door: `data_files`."""
