"""Evaluates a model on a table version, alone or against another model. Start: `evaluate.evaluate`."""
