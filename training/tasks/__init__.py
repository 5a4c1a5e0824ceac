"""Tasks: the kind of labels, with its checks, counts and records. Start: `task`."""
