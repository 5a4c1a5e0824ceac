"""How much of an ingest's planning the driver does alone, before it leaves it to Spark's tasks."""

from __future__ import annotations

# A quarter of a gigabyte of the driver's memory, and seconds of its time.
MOST_ROWS = 300_000
MOST_DATA_FILES = 2_000
# Annotations of so many files are read by one process in a second or two.
MOST_ANNOTATION_FILES = 5_000
# Files of which there is something to say travel to Spark inside its tasks, which have a bound of 128 MiB.
MOST_FILES_TO_SEND = 50_000
MOST_PATH_BYTES = 16 * 1024 * 1024
# Listing a mount may take long, and many tasks do it side by side.
LISTING_S = 10.0
# The driver hashes so much itself, in less time than a Spark job takes to start.
MOST_HASHED_FILES = 16
MOST_HASHED_BYTES = 64 * 1024 * 1024


class TooMuchError(Exception):
    """The driver should not do this alone, or cannot."""
