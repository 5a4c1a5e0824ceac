"""Checkpoints: written atomically, identified by a digest, without pickles; and the rules for keeping them.

Start: `save_checkpoint`, `open_checkpoint`.
"""

from __future__ import annotations

from .checkpoint import Checkpoint, open_checkpoint, save_checkpoint

__all__ = ["Checkpoint", "open_checkpoint", "save_checkpoint"]
