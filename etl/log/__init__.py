"""Delta's log read without a JVM: one version's files, rows and commits. Start: `snapshot.open_snapshot`."""
