"""Collectives that send tensors between ranks, with Horovod's names and meanings, for every type that Horovod supports.

With one process every operation returns its input, without Horovod.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import InvalidArgumentError
from ...extras import require
from .horovod_options import check_name, refuse
from .membership import counted, joined, rank, size
from .reduce_ops import MOVED, Sum, cast, wire_type, with_rows
from .reductions import allreduce


def allgather(value: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None) -> Any:
    """Concatenates the ranks' tensors along the first dimension, in the order of ranks.

    Args:
        value: A tensor of at least one dimension; all but the first must be the same on every rank.
        name: Names the operation.
        ignore_name_scope: Horovod's option; only its default is supported.
        process_set: Horovod's option; only `hvd.global_process_set` is supported.

    Raises:
        InvalidArgumentError: If it is a scalar, or of an unsupported type.
        NotSupportedError: If an option of Horovod is not supported here.
    """
    refuse(ignore_name_scope=ignore_name_scope, process_set=process_set)
    check_name(name)
    return _move(with_rows(value, "allgather"), lambda horovod, tensor: horovod.allgather(tensor, name=name))


def grouped_allgather(
    values: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None
) -> list[Any]:
    """Gathers each of several tensors as `allgather` does; returns one tensor for each, in their order."""
    return [
        allgather(value, f"{name}.{index}" if name else None, ignore_name_scope, process_set)
        for index, value in enumerate(values)
    ]


def alltoall(
    value: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None
) -> Any:
    """Sends rows to every rank and receives rows from every rank.

    Args:
        value: A tensor of at least one dimension; all but the first must be the same on every rank.
        splits: How many rows go to each rank, by rank; None sends equally many to each.
        name: Names the operation.
        ignore_name_scope: As in `allgather`.
        process_set: The same.

    Returns:
        The received rows, in the order of ranks; with `splits` also the number of rows from each rank.

    Raises:
        InvalidArgumentError: If the rows do not add up or cannot be divided, or the type is unsupported.
    """
    require("hvd.alltoall", "tensorflow")
    import tensorflow as tf

    refuse(ignore_name_scope=ignore_name_scope, process_set=process_set)
    check_name(name)
    tensor = with_rows(value, "alltoall")
    rows = tensor.shape[0]
    if splits is None:
        if rows is not None and rows % size():
            raise InvalidArgumentError(f"{rows} rows do not divide among {size()} ranks; pass splits=[...]")
        return _move(tensor, lambda horovod, moved: horovod.alltoall(moved, name=name))
    counts = tf.cast(tf.convert_to_tensor(splits), tf.int32)
    if counts.shape.rank != 1 or counts.shape[0] != size():
        raise InvalidArgumentError(f"splits={splits!r}: one number of rows for each of {size()} ranks")
    if size() == 1:
        return tensor, counts
    received: list[Any] = []

    def exchange(horovod: Any, moved: Any) -> Any:
        output, from_each = horovod.alltoall(moved, splits=counts, name=name)
        received.append(from_each)
        return output

    output = _move(tensor, exchange)
    return output, received[0]


def broadcast(
    value: Any, root_rank: int = 0, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None
) -> Any:
    """Broadcasts the tensor of `root_rank` to every rank; shape and type must be the same on every rank.

    Raises:
        InvalidArgumentError: If the rank does not exist, or the type is unsupported.
    """
    require("hvd.broadcast", "tensorflow")
    import tensorflow as tf

    refuse(ignore_name_scope=ignore_name_scope, process_set=process_set)
    check_name(name)
    check_root(root_rank)
    return _move(tf.convert_to_tensor(value), lambda horovod, tensor: horovod.broadcast(tensor, root_rank, name=name))


def broadcast_variables(
    variables: Sequence[Any], root_rank: int = 0, process_set: Any = None, inplace: bool = False
) -> None:
    """Broadcasts the values of `variables` (Keras' or TensorFlow's) on `root_rank` to every rank.

    The variables must be the same, in the same order, on every rank. `inplace` saves memory in Horovod, and has no
    effect here.
    """
    refuse(process_set=process_set)
    check_root(root_rank)
    if size() == 1:
        return
    import tensorflow as tf

    for index, variable in enumerate(variables):
        held = getattr(variable, "value", variable)
        tensor = tf.convert_to_tensor(held() if callable(held) else held)
        variable.assign(broadcast(tensor, root_rank, name=f"lakelens.broadcast.{index}"))


def barrier(process_set: Any = None) -> None:
    """Returns when every rank has called it."""
    refuse(process_set=process_set)
    if size() > 1:
        import tensorflow as tf

        allreduce(tf.zeros([], tf.int32), name="lakelens.barrier", op=Sum)


def _move(tensor: Any, collective: Callable[[Any, Any], Any]) -> Any:
    """Sends a tensor through one of Horovod's operations, converted to a supported type."""
    kind = wire_type(tensor.dtype, MOVED)
    if size() == 1:
        return tensor
    horovod = joined()
    moved = cast(tensor, kind)
    return cast(counted(lambda: collective(horovod, moved), [moved]), tensor.dtype)


def check_root(root_rank: Any) -> None:
    """Checks that a rank exists."""
    if not isinstance(root_rank, numbers.Integral) or not 0 <= int(root_rank) < size():
        raise InvalidArgumentError(f"root_rank={root_rank}: ranks are 0 to {size() - 1} (this is rank {rank()})")
