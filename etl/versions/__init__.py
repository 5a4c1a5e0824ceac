"""Versions of a table: history, class counts, differences, restore, VACUUM. Mostly without a JVM."""
