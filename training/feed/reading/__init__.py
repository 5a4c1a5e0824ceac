"""Row groups read in the order in which they are asked for, by Petastorm's worker pool, within a memory bound."""
