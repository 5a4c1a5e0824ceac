"""Runs a search: concurrent trials on slots, paused and continued, with every event in a journal. Start: `run`."""
