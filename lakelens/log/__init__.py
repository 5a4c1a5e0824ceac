"""Delta's log, read without a JVM: files, rows and deleted rows of a version. Start: `snapshot.open_snapshot`."""
