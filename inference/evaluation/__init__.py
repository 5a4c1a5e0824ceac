"""Metrics of a predictions table. Door: `evaluate`."""
