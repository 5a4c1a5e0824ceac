"""A Keras 3 optimizer that averages gradients over all ranks before it applies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ..errors import InvalidArgumentError
from . import distributed as world
from .distributed import Average, Compression, ReduceOp, Sum


class _Settings:
    """How one optimizer's gradients are combined."""

    def __init__(
        self,
        op: ReduceOp,
        compression: Compression,
        sparse_as_dense: bool,
        predivide: float,
        passes: int,
        average_passes: bool,
        name: str,
    ) -> None:
        self.op = op
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        self.predivide = predivide
        self.passes = passes
        self.average_passes = average_passes
        self.name = name


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    *,
    op: ReduceOp = Average,
    compression: Compression = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """Makes an optimizer combine gradients over all ranks in `apply`, before clipping, unscaling and the update.

    It is the optimizer that was given, with its state, its class extended: it saves and loads as the plain one. With a
    dtype policy of mixed_float16 it is wrapped in a LossScaleOptimizer first, so that all ranks skip the same steps:
    the combined gradients are what is checked for infinities.

    Args:
        optimizer: A Keras optimizer, its name or its configuration.
        name: Names the operations; the optimizer's own name by default.
        op: `Average` or `Sum`.
        compression: `Compression.fp16` sends gradients as half-precision numbers.
        sparse_as_dense: Turns sparse gradients (of embeddings) into dense ones before they travel.
        gradient_predivide_factor: Splits the averaging: divides by it before the sum and by size / it after. For
            `Average`.
        backward_passes_per_step: Gradients of this many steps are added up on each rank before they travel and are
            applied.
        average_aggregated_gradients: Divide what was added up by `backward_passes_per_step`.

    Returns:
        `optimizer` itself, or the LossScaleOptimizer around it.

    Raises:
        InvalidArgumentError: If an argument breaks its rule.
    """
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"op={op!r}: gradients are combined by hvd.Average or hvd.Sum")
    if gradient_predivide_factor <= 0:
        raise InvalidArgumentError(f"gradient_predivide_factor={gradient_predivide_factor!r}: must be above 0")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise InvalidArgumentError("gradient_predivide_factor splits an average; use op=hvd.Average with it")
    if backward_passes_per_step < 1:
        raise InvalidArgumentError(f"backward_passes_per_step={backward_passes_per_step!r}: must be at least 1")
    optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, _Distributed):
        raise InvalidArgumentError("this optimizer is distributed already; wrap it once")
    inner = getattr(optimizer, "inner_optimizer", None)
    if isinstance(inner, _Distributed):
        raise InvalidArgumentError(
            "wrap the LossScaleOptimizer, not the optimizer inside it: ranks must agree on which steps to skip"
        )
    policy = keras.mixed_precision.dtype_policy()
    if policy.name == "mixed_float16" and inner is None:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    base = type(optimizer)
    # Keras records a class by module and name: with those of the plain class a saved model loads without lakelens.
    extended = type(base.__name__, (_Distributed, base), {"__module__": base.__module__, "__doc__": base.__doc__})
    optimizer.__class__ = extended
    object.__setattr__(
        optimizer,
        "_lakelens",
        _Settings(
            op,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            backward_passes_per_step,
            average_aggregated_gradients,
            f"{name or optimizer.name}.gradients",
        ),
    )
    object.__setattr__(optimizer, "_lakelens_sums", None)
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Tells whether an optimizer averages over ranks."""
    return isinstance(optimizer, _Distributed)


class _Distributed:
    """Mixed into the class of an optimizer by `DistributedOptimizer`."""

    _lakelens: _Settings
    _lakelens_sums: Any

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Combines the gradients over ranks, then applies them."""
        settings = self._lakelens
        grads = list(grads)
        if settings.sparse_as_dense or settings.passes > 1:
            grads = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
        if settings.passes == 1:
            super().apply(_combine(grads, settings), trainable_variables)  # type: ignore[misc]
            return
        self._add_up(grads, trainable_variables)

    def _add_up(self, grads: list[Any], trainable_variables: Sequence[Any] | None) -> None:
        settings = self._lakelens
        if self._lakelens_sums is None:
            # Variables can be made outside the traced step only.
            with tf.init_scope():
                if trainable_variables is not None and not self.built:  # type: ignore[attr-defined]
                    self.build(list(trainable_variables))  # type: ignore[attr-defined]
                sums = [None if g is None else tf.Variable(tf.zeros(g.shape, g.dtype), trainable=False) for g in grads]
                object.__setattr__(self, "_lakelens_sums", (sums, tf.Variable(0, dtype=tf.int64, trainable=False)))
        sums, count = self._lakelens_sums
        for total, gradient in zip(sums, grads, strict=True):
            if gradient is not None:
                total.assign_add(gradient)
        count.assign_add(1)

        def update() -> int:
            divisor = settings.passes if settings.average_passes else 1
            combined = _combine(
                [None if total is None else total / tf.cast(divisor, total.dtype) for total in sums], settings
            )
            super(_Distributed, self).apply(combined, trainable_variables)  # type: ignore[misc]
            for total in sums:
                if total is not None:
                    total.assign(tf.zeros_like(total))
            return 0

        tf.cond(tf.equal(count % settings.passes, 0), update, lambda: 0)


def _combine(grads: Sequence[Any], settings: _Settings) -> list[Any]:
    """Combines gradients over ranks; a variable without a gradient stays without one."""
    present = [index for index, gradient in enumerate(grads) if gradient is not None]
    if world.size() == 1 or not present:
        return list(grads)
    scaling: dict[str, Any] = {"op": settings.op}
    if settings.predivide != 1.0:
        scaling = {
            "op": Sum,
            "prescale_factor": 1.0 / settings.predivide,
            "postscale_factor": settings.predivide / world.size(),
        }
    combined = world.grouped_allreduce(
        [grads[index] for index in present], settings.name, compression=settings.compression, **scaling
    )
    results = list(grads)
    for index, gradient in zip(present, combined, strict=True):
        results[index] = gradient
    return results
