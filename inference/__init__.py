"""Batch inference from tracked checkpoints."""
