"""How gradients of all ranks become one set: what optimizer and tape share."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..errors import InvalidArgumentError, NotSupportedError
from .collectives import grouped_allreduce
from .tensor_types import Average, Compression, ReduceOp, Sum
from .world import size


@dataclass(frozen=True)
class GradientSettings:
    """How one optimizer's or tape's gradients are combined.

    Attributes:
        op: `Average` or `Sum`.
        compression: In which type they travel.
        sparse_as_dense: Whether sparse gradients become dense ones before they travel.
        predivide: Splits the averaging: divides by it before the sum and by size / it after.
        groups: In how many operations they travel; 0 gives each its own, which can start while the others are still
            being computed.

    Raises:
        InvalidArgumentError: If a value breaks its rule.
    """

    op: ReduceOp = Average
    compression: Compression = Compression.none
    sparse_as_dense: bool = False
    predivide: float = 1.0
    groups: int = 1

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum):
            raise InvalidArgumentError(f"op={self.op!r}: gradients are combined by hvd.Average or hvd.Sum")
        if not isinstance(self.compression, Compression):
            raise InvalidArgumentError(
                f"compression={self.compression!r}: use hvd.Compression.none or hvd.Compression.fp16"
            )
        if self.predivide <= 0:
            raise InvalidArgumentError(f"gradient_predivide_factor={self.predivide!r}: must be above 0")
        if self.predivide != 1.0 and self.op is not Average:
            raise InvalidArgumentError("gradient_predivide_factor splits an average; use op=hvd.Average with it")
        if isinstance(self.groups, bool) or not isinstance(self.groups, int) or self.groups < 0:
            raise InvalidArgumentError(
                f"groups={self.groups!r}: a number of groups, 0 for none; which variables share one does not change "
                f"the result"
            )


def combine(grads: Sequence[Any], settings: GradientSettings, name: str | None = None) -> list[Any]:
    """Combines gradients over ranks; a variable without a gradient stays without one.

    Args:
        grads: Tensors, tf.IndexedSlices or None, the same kinds on every rank.
        settings: How.
        name: Names the operations; None leaves that to Horovod.
    """
    results = [tf.convert_to_tensor(g) if settings.sparse_as_dense and _is_sparse(g) else g for g in grads]
    present = [index for index, gradient in enumerate(results) if gradient is not None]
    if size() == 1 or not present:
        return results
    scaling: dict[str, Any] = {"op": settings.op}
    if settings.predivide != 1.0:
        scaling = {
            "op": Sum,
            "prescale_factor": 1.0 / settings.predivide,
            "postscale_factor": settings.predivide / size(),
        }
    for number, group in enumerate(_split(present, settings.groups)):
        combined = grouped_allreduce(
            [results[index] for index in group],
            f"{name}.{number}" if name else None,
            compression=settings.compression,
            **scaling,
        )
        for index, gradient in zip(group, combined, strict=True):
            results[index] = gradient
    return results


def _is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def _split(indexes: list[int], groups: int) -> list[list[int]]:
    """Deals indexes to groups of equal size, neighbours together; 0 groups: each alone."""
    count = min(groups, len(indexes)) or len(indexes)
    bounds = [len(indexes) * number // count for number in range(count + 1)]
    return [indexes[low:high] for low, high in itertools.pairwise(bounds)]


# What Horovod takes and lakelens does not, with the value that means nothing and what to do instead.
_REFUSED: dict[str, tuple[Any, str]] = {
    "device_dense": ("", "operations run where Horovod was built for; leave it out"),
    "device_sparse": ("", "operations run where Horovod was built for; leave it out"),
    "process_set": (None, "all ranks of a job are one world; start one HorovodRunner for each group"),
    "scale_local_gradients": (True, "every variable is shared by all ranks; leave it out"),
}


def refuse(options: Mapping[str, Any]) -> None:
    """Refuses options of Horovod's that would change what is computed and do not exist here.

    Raises:
        NotSupportedError: If one has another value than Horovod's default.
        InvalidArgumentError: If there is no such option in Horovod either.
    """
    for name, value in options.items():
        if name not in _REFUSED:
            raise InvalidArgumentError(f"{name}={value!r}: there is no such option")
        neutral, advice = _REFUSED[name]
        if value is not None and value != neutral:
            raise NotSupportedError(f"{name}={value!r} is not supported: {advice}")


def group_count(num_groups: int | None, groups: Any) -> int:
    """Reads Horovod's two options for grouping; one group by default."""
    if groups is None:
        return 1 if num_groups is None else num_groups
    if isinstance(groups, (list, tuple)):
        raise NotSupportedError(
            "groups=[[...], ...]: lists of variables are not supported; give a number of groups, the result is the same"
        )
    count: int = groups
    return count
