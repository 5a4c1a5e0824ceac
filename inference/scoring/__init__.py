"""Scores a table version into a predictions table: only new rows, each once. Start: `score`."""
