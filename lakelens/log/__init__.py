"""Delta's log, read without a JVM: files, rows and deleted rows of a version. Start: `table.Table.snapshot`."""
