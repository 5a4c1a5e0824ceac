"""What the labels of a training are, and what follows from it: checks, counts, the record. Start: `task`."""
