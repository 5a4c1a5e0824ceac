"""Batch inference from tracked checkpoints. Start: `udf.predict_udf`, `scoring.score.score`."""
