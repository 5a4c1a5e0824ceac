"""One training as one MLflow run, on the driver: its plan, decisions and record. Start: `train`."""
