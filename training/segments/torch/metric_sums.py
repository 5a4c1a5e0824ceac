"""Means over the rows of all ranks, from sums on each rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from .world import TorchWorld


class MetricSums:
    """Sums of metrics over rows, in float64; they stay on the device until they are read.

    Attributes:
        rows: Rows in the sums.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, means: Mapping[str, Any], rows: int) -> None:
        """Adds the means of a batch over its rows; none if it has no rows."""
        if rows == 0:
            return
        self.rows += rows
        for name, mean in means.items():
            total = torch.as_tensor(mean, dtype=torch.float64) * rows
            self._sums[name] = self._sums[name] + total if name in self._sums else total

    def over_ranks(self, world: TorchWorld) -> dict[str, float]:
        """Returns the means over the rows of all ranks, the same on each; every rank calls it."""
        names = sorted(
            {name for found in world.allgather_object(list(self._sums), name="lakelens.names") for name in found}
        )
        mine = np.array([self.rows, *(float(self._sums.get(name, 0.0)) for name in names)], np.float64)
        ((rows, *totals),) = world.sums([mine], name="lakelens.sums")
        return {name: float(total / rows) for name, total in zip(names, totals, strict=True)}

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the sums as arrays by name."""
        return {"rows": np.array(self.rows), **{f"sum/{name}": each.cpu().numpy() for name, each in self._sums.items()}}

    def restore(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Restores what `arrays` gave."""
        self.rows = int(arrays["rows"])
        self._sums = {
            name.removeprefix("sum/"): torch.from_numpy(np.array(each))
            for name, each in arrays.items()
            if name.startswith("sum/")
        }
