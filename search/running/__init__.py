"""Runs a search: trials on slots at the same time, paused and continued, with every event in a journal. Door: `run`."""
