"""Combines the gradients of all ranks, for optimizers and in a tf.GradientTape."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ...errors import InvalidArgumentError, NotSupportedError
from .horovod_options import refuse
from .membership import size
from .reduce_ops import Average, Compression, ReduceOp, Sum
from .reductions import grouped_allreduce

# Small enough that little remains to send when the backward pass ends and that a group stays in the processor's cache
# (1.7 ms for 2 MB, 17.4 ms for 14 MB), large enough that the fixed cost of each operation is small.
GROUP_BYTES = 2_000_000
MOST_GROUPS = 32


@dataclass(frozen=True)
class GradientSettings:
    """How one optimizer's or tape's gradients are combined; `DistributedOptimizer` describes the values."""

    op: ReduceOp = Average
    compression: Compression = Compression.none
    sparse_as_dense: bool = False
    predivide: float = 1.0  # Gradients are divided by it before the sum, and by size / it after the sum
    groups: int | None = None  # None groups neighbours up to `GROUP_BYTES`, or a 32nd of all bytes if that is more

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
        if self.groups is not None and (type(self.groups) is not int or self.groups < 0):
            raise InvalidArgumentError(
                f"groups={self.groups!r}: a number of groups, 0 for none; which variables share one does not change "
                f"the result"
            )


def combine(grads: Sequence[Any], settings: GradientSettings, name: str) -> list[Any]:
    """Combines gradients over ranks; a variable without a gradient stays without one.

    In a traced step each group is sent as soon as its gradients are ready. Groups start with the last variables, the
    order in which a backward pass computes gradients, so that sending overlaps with computing the others.
    """
    results = [tf.convert_to_tensor(g) if settings.sparse_as_dense and _is_sparse(g) else g for g in grads]
    present = [index for index, gradient in enumerate(results) if gradient is not None]
    replicas = tf.distribute.get_replica_context()
    if present and replicas is not None and replicas.num_replicas_in_sync > 1:
        return _over_replicas(replicas, results, present, settings.compression)
    if size() == 1 or not present:
        return results
    scaling: dict[str, Any] = {"op": settings.op}
    if settings.predivide != 1.0:
        scaling = {
            "op": Sum,
            "prescale_factor": 1.0 / settings.predivide,
            "postscale_factor": settings.predivide / size(),
        }
    for number, group in enumerate(_groups(results, present, settings)):
        combined = grouped_allreduce(
            [results[index] for index in group], f"{name}.{number}", compression=settings.compression, **scaling
        )
        for index, gradient in zip(group, combined, strict=True):
            results[index] = gradient
    return results


def _over_replicas(replicas: Any, grads: list[Any], present: list[int], compression: Compression) -> list[Any]:
    """Sums gradients over the devices of a tf.distribute strategy; Keras has divided each loss by their number."""
    narrow = {
        index: compression is Compression.fp16 and not _is_sparse(grads[index]) and grads[index].dtype == tf.float32
        for index in present
    }
    sent = [tf.cast(grads[index], tf.float16) if narrow[index] else grads[index] for index in present]
    summed = replicas.all_reduce(tf.distribute.ReduceOp.SUM, sent)
    results = list(grads)
    for index, gradient in zip(present, summed, strict=True):
        results[index] = tf.cast(gradient, tf.float32) if narrow[index] else gradient
    return results


def _is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def _groups(grads: Sequence[Any], present: list[int], settings: GradientSettings) -> list[list[int]]:
    """Groups the indexes of gradients, neighbours together, the last gradients first."""
    if settings.groups is not None:
        return _split(present, settings.groups)[::-1]
    if tf.executing_eagerly():
        # All gradients exist, and each operation ends before the next one starts.
        return [present]
    sizes = {index: _bytes(grads[index]) for index in reversed(present)}
    return group_by_bytes(sizes, max(GROUP_BYTES, sum(sizes.values()) // MOST_GROUPS))


def _split(indexes: list[int], groups: int) -> list[list[int]]:
    """Divides indexes into groups of equal size, neighbours together; 0 groups: each alone."""
    count = min(groups, len(indexes)) or len(indexes)
    bounds = [len(indexes) * number // count for number in range(count + 1)]
    return [indexes[low:high] for low, high in itertools.pairwise(bounds)]


def group_by_bytes(sizes: Mapping[int, int], full_bytes: int) -> list[list[int]]:
    """Divides indexes into groups, in their order; a group is full at `full_bytes`.

    No group has a single member if there are more: Horovod fuses single tensors by the time at which they are ready,
    which may change the order of the sum over three or more ranks, and with it the last bits.
    """
    groups: list[list[int]] = [[]]
    held = 0
    for index, size_bytes in sizes.items():
        if held >= full_bytes and len(groups[-1]) > 1:
            groups.append([])
            held = 0
        groups[-1].append(index)
        held += size_bytes
    if len(groups) > 1 and len(groups[-1]) == 1:
        groups[-2:] = [groups[-2] + groups[-1]]
    return groups


def _bytes(gradient: Any) -> int:
    """The size of a dense gradient as far as the graph knows it; the same on every rank, as the groups must be."""
    if _is_sparse(gradient):
        return 0
    return int((gradient.shape.num_elements() or 0) * gradient.dtype.size)


def group_count(num_groups: int | None, groups: int | list[Any] | tuple[Any, ...] | None) -> int | None:
    """Reads Horovod's two options for grouping; None without both."""
    if isinstance(groups, (list, tuple)):
        raise NotSupportedError(
            "groups=[[...], ...]: lists of variables are not supported; give a number of groups, the result is the same"
        )
    return num_groups if groups is None else groups


class _DistributedTape:
    """Mixed into the class of a tape by `DistributedGradientTape`."""

    _lakelens: GradientSettings

    def gradient(self, target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        """Returns the gradients of `target` by `sources`, combined over ranks, in the structure of `sources`."""
        grads = super().gradient(target, sources, *arguments, **options)  # type: ignore[misc]
        # Without a name operations would be named after Keras' layers, which each process counts separately. TensorFlow
        # makes the name unique in a graph.
        combined = combine(tf.nest.flatten(grads), self._lakelens, "tape.gradients")
        return tf.nest.pack_sequence_as(grads, combined)


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compression = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int | None = None,
    groups: int | None = None,
    process_set: Any = None,
    scale_local_gradients: bool = True,
    **options: Any,
) -> Any:
    """Makes a tape combine gradients over all ranks; arguments are those of `DistributedOptimizer`.

    Returns:
        `gradtape` itself, whose `gradient` combines.

    Raises:
        InvalidArgumentError: If an argument breaks its rule, or the tape is distributed already.
        NotSupportedError: If an option of Horovod is not supported here.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise InvalidArgumentError(f"DistributedGradientTape takes a tf.GradientTape, got {type(gradtape).__name__}")
    if isinstance(gradtape, _DistributedTape):
        raise InvalidArgumentError("this tape is distributed already; wrap it once")
    refuse(
        device_dense=device_dense,
        device_sparse=device_sparse,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        **options,
    )
    settings = GradientSettings(
        op, compression, sparse_as_dense, gradient_predivide_factor, group_count(num_groups, groups)
    )
    base = type(gradtape)
    gradtape.__class__ = type(base.__name__, (_DistributedTape, base), {"_lakelens": settings})
    return gradtape
