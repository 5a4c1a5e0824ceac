"""A tf.GradientTape that combines gradients over all ranks, for custom training loops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ...errors import InvalidArgumentError
from .gradient_averaging import GradientSettings, combine, group_count
from .horovod_options import refuse
from .reduce_ops import Average, Compression, ReduceOp


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
