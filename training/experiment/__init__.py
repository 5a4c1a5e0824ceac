"""One training as one MLflow run: the driver's side in `train`, a rank's in `job`. Door: `train.train`."""
