"""Ranks as tasks of one barrier stage: checks before the start, slots, and the driver's connection to each task."""
