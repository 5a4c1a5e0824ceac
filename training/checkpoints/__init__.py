"""Checkpoints: written whole or not at all, fixed by a digest, free of pickles; and which are kept.

Start: `save_checkpoint`, `open_checkpoint`.
"""

from __future__ import annotations

from .checkpoint import Checkpoint, open_checkpoint, save_checkpoint

__all__ = ["Checkpoint", "open_checkpoint", "save_checkpoint"]
