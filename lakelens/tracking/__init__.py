"""MLflow: which store is used, one run per training, and what rank 0 writes into it. Start: `runs`."""
