"""Delta's log read without a JVM: one version's files, rows and commits. Door: `snapshot.open_snapshot`."""
