"""From a reference (run, alias, path) to predictions of stored images. Start: `predictor`."""
