"""Batch inference from tracked checkpoints. Doors: `udf.predict_udf`, `scoring.score.score`."""
