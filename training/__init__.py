"""Distributed training that pins one version of a Delta table."""
