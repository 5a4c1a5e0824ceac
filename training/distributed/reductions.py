"""Collectives that combine tensors over ranks, with Horovod's names and meanings.

With one process every operation returns its input, without Horovod.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Sequence
from typing import Any

from ...errors import InvalidArgumentError
from ...extras import require
from .horovod_options import check_name, refuse
from .membership import counted, joined, size
from .reduce_ops import (
    MOVED,
    REDUCED,
    SCATTERED,
    Average,
    Compression,
    ReduceOp,
    Sum,
    by_wire_type,
    cast,
    check_reducible,
    wire_type,
    with_rows,
)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Compression = Compression.none,
    **options: Any,
) -> Any:
    """Combines a tensor over all ranks, element by element.

    Args:
        value: A tensor, variable or array of numbers, of any shape, the same shape and type on every rank.
        name: Names the operation; ranks that call in different orders need names.
        average: Horovod's older form of `op`: True is `Average`, False is `Sum`.
        prescale_factor: Multiplies the value before sending.
        postscale_factor: Multiplies the result.
        op: How to combine; `Average` by default.
        compression: Type in which it is sent.
        **options: Other options of Horovod (`device_dense`, `process_set`, ...), with their default values only.

    Returns:
        A tensor of the same shape and type. A sparse gradient (tf.IndexedSlices) stays sparse.

    Raises:
        InvalidArgumentError: If the type cannot be combined, or whole numbers are to be averaged.
        NotSupportedError: If an option of Horovod is not supported here.
    """
    return grouped_allreduce(
        [value],
        name,
        average,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        **options,
    )[0]


def grouped_allreduce(
    values: Sequence[Any],
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Compression = Compression.none,
    **options: Any,
) -> list[Any]:
    """Combines several tensors over all ranks as one operation for each type; see `allreduce`.

    Returns:
        One tensor for each of `values`, in their order.
    """
    require("hvd.allreduce", "tensorflow")
    import tensorflow as tf

    refuse(**options)
    op = _operation(op, average)
    check_name(name)
    factors: tuple[Any, ...] = (prescale_factor, postscale_factor)
    for factor in factors:
        if isinstance(factor, bool) or not isinstance(factor, numbers.Real):  # NumPy's too
            raise InvalidArgumentError(f"{factor!r} is not a factor; pass op=..., compression=... by keyword")
    if not isinstance(compression, Compression):
        raise InvalidArgumentError(f"compression={compression!r}: use hvd.Compression.none or hvd.Compression.fp16")
    tensors = [value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value) for value in values]
    for tensor in tensors:
        check_reducible(tensor.dtype, op)
    scale = prescale_factor * postscale_factor
    if size() == 1:
        return [_scaled(tensor, scale) for tensor in tensors]
    horovod = joined()
    scaling = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    scaling = {key: factor for key, factor in scaling.items() if factor != 1.0}
    results: list[Any] = list(tensors)
    for kind, indexes in by_wire_type(tensors, REDUCED).items():
        group = [cast(tensors[index], kind) for index in indexes]
        call = functools.partial(
            horovod.grouped_allreduce,
            group,
            name=f"{name}.{kind}" if name else None,
            op=getattr(horovod, op.value),
            compression=getattr(horovod.Compression, compression.value),
            **scaling,
        )
        reduced = counted(call, group)
        for index, tensor in zip(indexes, reduced, strict=True):
            results[index] = cast(tensor, tensors[index].dtype)
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            # Horovod 0.28.1's grouped form mixes up the shapes of sparse tensors if dense ones are among them.
            results[index] = _sparse_allreduce(horovod, tensor, op, scale, f"{name}.{index}" if name else None)
    return results


def _operation(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    if average is not None and op is not None:
        raise InvalidArgumentError(f"average={average!r} and op={op!r} say the same thing; pass op alone")
    if average is not None:
        if not isinstance(average, bool):
            raise InvalidArgumentError(f"average={average!r}: True or False; or op=hvd.Average, op=hvd.Sum")
        return Average if average else Sum
    if op is not None and not isinstance(op, ReduceOp):
        raise InvalidArgumentError(f"op={op!r}: use hvd.Average, hvd.Sum, hvd.Min, hvd.Max or hvd.Product")
    return op or Average


def _sparse_allreduce(horovod: Any, slices: Any, op: ReduceOp, scale: float, name: str | None) -> Any:
    """Gathers the rows of all ranks as Horovod 0.28.1's allreduce does, but with names for the operations.

    Without names Horovod would use the names of the graph's tensors, and so of Keras' layers, which each process
    counts.
    """
    import tensorflow as tf

    if op not in (Average, Sum):
        raise InvalidArgumentError(
            f"op={op.value} does not exist for sparse gradients; use Average or Sum, or sparse_as_dense=True"
        )
    moved = [cast(slices.values, wire_type(slices.values.dtype, MOVED)), slices.indices]
    names = [f"{name}.{part}" if name else None for part in ("values", "indices")]
    values, indices = counted(
        lambda: [horovod.allgather(part, name=called) for part, called in zip(moved, names, strict=True)], moved
    )
    if op is Average:
        values = values / tf.cast(size(), values.dtype)
    return _scaled(tf.IndexedSlices(cast(values, slices.values.dtype), indices, slices.dense_shape), scale)


def _scaled(tensor: Any, scale: float) -> Any:
    import tensorflow as tf

    if scale == 1.0:
        return tensor
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(tensor.values, scale), tensor.indices, tensor.dense_shape)
    if tensor.dtype.is_integer:
        # As Horovod does: a factor of 0.5 must not become 0.
        return tf.cast(tf.cast(tensor, tf.float64) * scale, tensor.dtype)
    return tensor * tf.cast(scale, tensor.dtype)


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average, **options: Any) -> Any:
    """Combines a tensor over all ranks and gives each rank its share of the rows.

    Args:
        value: A tensor of at least one dimension, the same shape and type on every rank. If the number of rows is not
            divisible by the number of ranks, the first ranks get one more.
        name: Names the operation.
        op: `Average` or `Sum`.
        **options: Other options of Horovod, with their default values only.

    Returns:
        This rank's rows, [rows of the share, ...].

    Raises:
        InvalidArgumentError: If the operation, the type or the shape is not supported.
    """
    require("hvd.reducescatter", "tensorflow")
    import tensorflow as tf

    refuse(**options)
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"op={op!r}: reducescatter combines by hvd.Average or hvd.Sum")
    check_name(name)
    tensor = with_rows(value, "reducescatter")
    check_reducible(tensor.dtype, op)
    if size() == 1:
        return tensor
    horovod = joined()
    moved = cast(tensor, wire_type(tensor.dtype, SCATTERED))
    reduced = counted(lambda: horovod.reducescatter(moved, op=getattr(horovod, op.value), name=name), [moved])
    return tf.cast(reduced, tensor.dtype)
