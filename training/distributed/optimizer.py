"""A Keras 3 optimizer that averages gradients over all ranks before it applies them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...errors import InvalidArgumentError, NotSupportedError
from ..keras_internals import place_among_updated, updated_variables
from .gradient_averaging import GradientSettings, combine, group_count
from .horovod_options import refuse
from .reduce_ops import Average, Compression, ReduceOp

_COUNT = re.compile(r"_\d+\Z")


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compression = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int | None = None,
    groups: int | None = None,
    process_set: Any = None,
    scale_local_gradients: bool = True,
    **options: Any,
) -> Any:
    """Makes an optimizer combine gradients over all ranks in `apply`, before clipping, unscaling and the update.

    The result is the same optimizer with its state and an extended class: it saves and loads like the plain one. With
    the dtype policy mixed_float16 it is wrapped in a LossScaleOptimizer first, so that all ranks skip the same steps:
    the combined gradients are checked for infinities.

    Args:
        optimizer: A Keras optimizer, its name or its configuration.
        name: Names the operations; the optimizer's own name by default, without a number at its end.
        device_dense: Horovod's option; only its default is supported.
        device_sparse: The same.
        compression: `Compression.fp16` sends gradients as half-precision numbers.
        sparse_as_dense: Convert sparse gradients (of embeddings) to dense ones before sending.
        gradient_predivide_factor: Splits the averaging: gradients are divided by it before the sum and by size / it
            after the sum. For `Average`.
        op: `Average` or `Sum`.
        backward_passes_per_step: Number of steps whose gradients each rank adds up before they are combined and
            applied.
        average_aggregated_gradients: Divide the added gradients by `backward_passes_per_step`.
        num_groups: Number of operations that send the gradients; 0 sends each separately. By default neighbours share
            an operation up to some MB, and each starts while the backward pass still computes earlier layers.
        groups: Same as `num_groups`, under Horovod's newer name.
        process_set: Horovod's option; only `hvd.global_process_set` is supported.
        scale_local_gradients: Horovod's option; only its default is supported.
        **options: Other options of Horovod, with their default values only.

    Returns:
        `optimizer` itself, or the LossScaleOptimizer around it.

    Raises:
        InvalidArgumentError: If an argument breaks its rule.
        NotSupportedError: If an option of Horovod's does not exist here.
    """
    refuse(
        device_dense=device_dense,
        device_sparse=device_sparse,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        **options,
    )
    if isinstance(backward_passes_per_step, bool) or backward_passes_per_step < 1:
        raise InvalidArgumentError(f"backward_passes_per_step={backward_passes_per_step!r}: must be at least 1")
    settings = GradientSettings(
        op, compression, sparse_as_dense, gradient_predivide_factor, group_count(num_groups, groups)
    )
    optimizer = keras.optimizers.get(optimizer)
    if is_distributed(optimizer):
        raise InvalidArgumentError("this optimizer is distributed already; wrap it once")
    inner = getattr(optimizer, "inner_optimizer", None)
    if is_distributed(inner):
        raise InvalidArgumentError(
            "wrap the LossScaleOptimizer, not the optimizer inside it: ranks must agree on which steps to skip"
        )
    if keras.mixed_precision.dtype_policy().name == "mixed_float16" and inner is None:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        inner = optimizer.inner_optimizer
    if inner is not None:
        # As `_DistributedOptimizer` does for an optimizer without loss scale; past Keras' tracking of attributes.
        object.__setattr__(inner, "_all_reduce_sum_gradients", list)
    base = type(optimizer)
    # Keras records a class by module and name: with the plain class' names a saved model loads without lakelens.
    # The settings belong to the class, so that a copy made by from_config combines gradients like the original.
    optimizer.__class__ = type(
        base.__name__,
        (_DistributedOptimizer, base),
        {
            "__module__": base.__module__,
            "__doc__": base.__doc__,
            "_lakelens": settings,
            "_lakelens_name": name,
            "_lakelens_passes": (backward_passes_per_step, average_aggregated_gradients),
        },
    )
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Returns whether an optimizer averages over ranks."""
    return isinstance(optimizer, _DistributedOptimizer)


class _DistributedOptimizer:
    """Mixed into the class of an optimizer by `DistributedOptimizer`."""

    _lakelens: GradientSettings
    _lakelens_name: str | None
    _lakelens_passes: tuple[int, bool]
    _lakelens_sums: Any = None
    _lakelens_share: tf.Tensor | None = None
    _lakelens_loss_scaled = False

    def scale_loss(self, loss: Any) -> Any:
        """Multiplies the loss, and thus this rank's gradients, by its share."""
        loss = super().scale_loss(loss)  # type: ignore[misc]
        if self._lakelens_share is None:
            return loss
        object.__setattr__(self, "_lakelens_loss_scaled", True)
        return tf.math.scalar_mul(tf.cast(self._lakelens_share, loss.dtype), loss)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Combines the gradients over ranks, then applies them."""
        if self._lakelens_share is not None and not self._lakelens_loss_scaled:  # a step of the user's own
            share = self._lakelens_share
            grads = [None if each is None else tf.math.scalar_mul(tf.cast(share, each.dtype), each) for each in grads]
        if self._lakelens_passes[0] == 1:
            super().apply(self._combined(grads), trainable_variables)  # type: ignore[misc]
        else:
            self._add_up(grads, trainable_variables)

    def _combined(self, grads: Sequence[Any]) -> list[Any]:
        # Keras counts the optimizers of a process, and a rank may have made one more than the others.
        name = self._lakelens_name or _COUNT.sub("", self.name)  # type: ignore[attr-defined]
        return combine(grads, self._lakelens, f"{name}.gradients")

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> list[Any]:
        """Does nothing: `apply` has already summed over the strategy's devices, before clipping and unscaling."""
        return list(grads_and_vars)

    def _add_up(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None) -> None:
        passes, average = self._lakelens_passes
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise NotSupportedError(
                "gradients are added up over several steps in processes with one device each, not over the devices of "
                "tf.distribute; use backward_passes_per_step=1, or a process for each device"
            )
        with tf.init_scope():  # variables can be created only outside the traced step
            if trainable_variables is not None and not self.built:  # type: ignore[attr-defined]
                self.build(list(trainable_variables))  # type: ignore[attr-defined]
        count, *sums = added_up(self)
        if trainable_variables is not None:  # a step may train only some of the variables, if others are frozen
            sums = [sums[place_among_updated(self, variable)] for variable in trainable_variables]
        for total, gradient in zip(sums, grads, strict=True):
            if gradient is not None:
                total.assign_add(tf.convert_to_tensor(gradient))
        count.assign_add(1)

        def update() -> int:
            divisor = passes if average else 1
            combined = self._combined(
                [
                    None if gradient is None else total / tf.cast(divisor, total.dtype)
                    for total, gradient in zip(sums, grads, strict=True)
                ]
            )
            super(_DistributedOptimizer, self).apply(combined, trainable_variables)  # type: ignore[misc]
            for total in sums:
                total.assign(tf.zeros_like(total))
            count.assign(0)
            return 0

        tf.cond(tf.equal(count, passes), update, lambda: 0)


@contextlib.contextmanager
def weighted(optimizer: Any, share: tf.Tensor) -> Iterator[None]:
    """Multiplies this rank's loss by a factor inside the block, or its gradients in a step that scales no loss."""
    # Bypass Keras' tracking: the tensor belongs to the traced step, not to the optimizer's state.
    object.__setattr__(optimizer, "_lakelens_share", share)
    try:
        yield
    finally:
        object.__setattr__(optimizer, "_lakelens_share", None)
        object.__setattr__(optimizer, "_lakelens_loss_scaled", False)


def added_up(optimizer: Any) -> list[tf.Variable]:
    """Returns a built optimizer's steps since its last update and the summed gradients; [] if every step updates."""
    if not is_distributed(optimizer) or optimizer._lakelens_passes[0] == 1:  # noqa: SLF001
        return []
    if optimizer._lakelens_sums is None:  # noqa: SLF001
        with tf.init_scope():
            sums = [
                tf.Variable(tf.zeros(tuple(variable.shape), variable.dtype), trainable=False)
                for variable in updated_variables(optimizer)
            ]
            # Bypass Keras' tracking: they belong to this rank, and not to a saved optimizer.
            object.__setattr__(optimizer, "_lakelens_sums", [tf.Variable(0, dtype=tf.int64, trainable=False), *sums])
    return list(optimizer._lakelens_sums)  # noqa: SLF001
