"""One version of a table into a predictions table: only what is new, each row once. Start: `score`."""
