"""How good a model is on a table version, and what another one has changed. Start: `evaluate.evaluate`."""
