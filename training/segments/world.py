"""The ranks of a training as the training loop sees them; each backend joins them in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np


class World(Protocol):
    """All ranks of a job. Every rank calls the same methods in the same order; one process does not communicate."""

    rank: int  # This rank
    size: int  # Number of ranks

    def broadcast_object(self, value: Any, *, name: str) -> Any:
        """Returns rank 0's picklable object on every rank; those of other ranks are ignored."""

    def allgather_object(self, value: Any, *, name: str) -> list[Any]:
        """Returns the picklable objects of all ranks, by rank."""

    def sums(self, arrays: Sequence[np.ndarray[Any, Any]], *, name: str) -> list[np.ndarray[Any, Any]]:
        """Returns the sums over all ranks of arrays of numbers, whose shapes and types are equal on all ranks."""
