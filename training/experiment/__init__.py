"""One training as one MLflow run, on the driver: what is trained, what is decided, what is recorded. Start: `train`."""
