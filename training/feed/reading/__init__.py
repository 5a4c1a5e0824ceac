"""Row groups read in threads, in the order in which their rows are asked for, within a memory bound."""
