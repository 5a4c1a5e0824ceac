"""From a reference (run, alias, path) to predictions of stored images. Doors: `references`, `predictor`."""
