"""Row groups read in the order in which they are asked for, within a memory bound."""
