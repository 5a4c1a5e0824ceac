"""Which tensors can be combined or sent between ranks, how, and in which type."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import InvalidArgumentError
from ...extras import require


class ReduceOp(enum.Enum):
    """How values of several ranks are combined."""

    AVERAGE = "Average"
    SUM = "Sum"
    MIN = "Min"
    MAX = "Max"
    PRODUCT = "Product"


Average, Sum, Min, Max, Product = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


class Compression(enum.Enum):
    """The type in which gradients are sent."""

    none = "none"
    fp16 = "fp16"


# Types for which Horovod 0.28.1's operations are registered.
REDUCED = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")
MOVED = (*REDUCED, "uint16", "int16", "bool")
SCATTERED = ("int32", "int64", "float16", "float32", "float64")


def check_reducible(dtype: Any, op: ReduceOp) -> None:
    """Checks that values of a type can be combined."""
    if not (dtype.is_integer or dtype.is_floating):
        raise InvalidArgumentError(
            f"{dtype.name} cannot be combined over ranks, only numbers; tf.cast it, or use hvd.allgather"
        )
    if dtype.is_integer and op is Average:
        raise InvalidArgumentError(
            f"an average of {dtype.name} would lose its fraction; tf.cast the value to float32, or use op=hvd.Sum"
        )


def by_wire_type(tensors: Iterable[Any], known: Sequence[str]) -> dict[Any, list[int]]:
    """Groups dense tensors by the type in which they are sent: one operation of Horovod takes one type."""
    import tensorflow as tf

    groups: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, tf.IndexedSlices):
            groups.setdefault(wire_type(tensor.dtype, known), []).append(index)
    return groups


def wire_type(dtype: Any, known: Sequence[str]) -> str:
    """Finds a type that Horovod supports and that can represent every value of `dtype`."""
    if dtype.name in known:
        return str(dtype.name)
    if dtype.is_floating:  # bfloat16 and smaller
        return "float32"
    if dtype.is_integer and dtype.name != "uint64":
        return "int64"
    raise InvalidArgumentError(f"{dtype.name} cannot travel between ranks; Horovod moves {', '.join(known)}")


def cast(tensor: Any, dtype: Any) -> Any:
    """Converts a tensor to another type; returns it unchanged if it has that type."""
    import tensorflow as tf

    return tensor if tensor.dtype == tf.as_dtype(dtype) else tf.cast(tensor, dtype)


def with_rows(value: Any, what: str) -> Any:
    """Converts a value to a tensor and checks that it has a first dimension."""
    require("hvd's collectives", "tensorflow")
    import tensorflow as tf

    tensor = tf.convert_to_tensor(value)
    if tensor.shape.rank == 0:
        raise InvalidArgumentError(
            f"{what} works along the first dimension and a scalar has none; use tf.expand_dims(value, 0)"
        )
    return tensor
