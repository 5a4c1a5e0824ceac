"""Where ranks run: their numbers within and across hosts, their environment, their GPUs. Pure."""
