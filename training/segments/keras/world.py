"""The ranks of a training of a Keras model: Horovod's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import distributed as hvd


class HorovodWorld:
    """Horovod's ranks; see `World`. Makes this process one of them."""

    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def broadcast_object(self, value: Any, *, name: str) -> Any:
        """Returns rank 0's object; see `World.broadcast_object`."""
        return hvd.broadcast_object(value, 0, name=name)

    def allgather_object(self, value: Any, *, name: str) -> list[Any]:
        """Returns the objects of all ranks; see `World.allgather_object`."""
        return hvd.allgather_object(value, name=name)

    def sums(self, arrays: Sequence[np.ndarray[Any, Any]], *, name: str) -> list[np.ndarray[Any, Any]]:
        """Returns sums over all ranks; see `World.sums`."""
        return [np.asarray(total) for total in hvd.grouped_allreduce(list(arrays), name=name, op=hvd.Sum)]
