"""Horovod's Keras names, working on Keras 3: `import lakelens.training.distributed as hvd`.

In a world of one process nothing here imports Horovod, and every collective gives back what it was given.
"""

from __future__ import annotations

import enum
import hmac
import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, LaunchError, MissingDependencyError
from . import rank_link
from .rank_link import log_to_driver
from .wire import Kind

if TYPE_CHECKING:
    from . import callbacks
    from .optimizer import DistributedOptimizer

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "attempt",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "log_to_driver",
    "rank",
    "shutdown",
    "size",
]

_MAC_BYTES = 32


class ReduceOp(enum.Enum):
    """How values of several ranks become one."""

    AVERAGE = "Average"
    SUM = "Sum"
    MIN = "Min"
    MAX = "Max"
    PRODUCT = "Product"


Average, Sum, Min, Max, Product = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


class Compression(enum.Enum):
    """In which type gradients travel."""

    none = "none"
    fp16 = "fp16"


class _World:
    """This process's membership in the world of collectives."""

    initialized = False
    left = False
    horovod: Any = None
    counter: Any = None
    lock = threading.Lock()


# --- membership -----------------------------------------------------------------------------------------------------


def init() -> None:
    """Joins the other ranks; returns when all have joined. A second call does nothing.

    Makes the rank's own GPU, if it has one, the only one that TensorFlow uses, with memory growth.

    Raises:
        MissingDependencyError: If the world is larger than one and Horovod is missing.
        LaunchError: If this process had already left the world with `shutdown()`.
    """
    with _World.lock:
        if _World.initialized:
            return
        if _World.left:
            raise LaunchError(
                "hvd.init() after hvd.shutdown(): a rank joins its world once; call shutdown() last or not at all"
            )
        if size() > 1:
            link = rank_link.current()
            link.send(Kind.JOINING)
            _World.horovod = _import_horovod()
            if link.launched:
                from .gloo_interface import listen_on

                listen_on(os.environ["HOROVOD_GLOO_IFACE"])
            _World.horovod.init()
            link.send(Kind.JOINED)
            from .stall import CollectiveCounter

            _World.counter = CollectiveCounter(link)
        _World.initialized = True
    _use_own_gpu()


def _import_horovod() -> Any:
    try:
        import horovod.tensorflow as horovod
    except ImportError as error:
        from .preflight import INSTALL_HOROVOD

        raise MissingDependencyError(
            f"Horovod cannot be imported ({error}); install it:\n  {INSTALL_HOROVOD}"
        ) from error
    return horovod


def _use_own_gpu() -> None:
    own = os.environ.get("LAKELENS_GPU")
    if own is None:
        if rank() == 0 and rank_link.current().launched and "CUDA_VISIBLE_DEVICES" not in os.environ:
            sys.stderr.write("lakelens: no GPU is assigned to the ranks; they train on the CPU\n")
        return
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if local_rank() >= len(gpus):
        raise LaunchError(
            f"rank {rank()} was given GPU {own}, but TensorFlow sees {len(gpus)} of CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES')}; check the driver with nvidia-smi and TensorFlow's CUDA "
            f"libraries"
        )
    try:
        tf.config.set_visible_devices(gpus[local_rank()], "GPU")
        tf.config.experimental.set_memory_growth(gpus[local_rank()], True)
    except RuntimeError as error:
        raise LaunchError(f"call hvd.init() before the first use of TensorFlow's devices ({error})") from error


def shutdown() -> None:
    """Leaves the world; collectives of ranks that still wait for this one fail. Without `init()` it does nothing."""
    with _World.lock:
        if _World.initialized and _World.horovod is not None:
            _World.counter.close()
            _World.horovod.shutdown()
        _World.left = _World.left or (_World.initialized and _World.horovod is not None)
        _World.initialized = False


def is_initialized() -> bool:
    """Tells whether this process has joined."""
    return _World.initialized


def rank() -> int:
    """This process's number, 0 to `size() - 1`."""
    return _place("HOROVOD_RANK", rank_link.current().rank, 0)


def size() -> int:
    """Number of processes in the world."""
    return _place("HOROVOD_SIZE", rank_link.current().size, 1)


def local_rank() -> int:
    """This process's number among those on its host."""
    return _place("HOROVOD_LOCAL_RANK", rank_link.current().local_rank, 0)


def local_size() -> int:
    """Number of processes on this host."""
    return _place("HOROVOD_LOCAL_SIZE", rank_link.current().local_size, 1)


def cross_rank() -> int:
    """This host's number among the hosts."""
    return _place("HOROVOD_CROSS_RANK", 0, 0)


def cross_size() -> int:
    """Number of hosts."""
    return _place("HOROVOD_CROSS_SIZE", 1, 1)


def attempt() -> int:
    """0 for the first start of the job, 1 after its first restart, and so on."""
    return rank_link.current().attempt


def _place(variable: str, launched: int, alone: int) -> int:
    """A rank's place: from our launcher, else from another Horovod launcher's environment, else a world of one."""
    if rank_link.current().launched and rank_link.current().size == 1:
        return launched
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else launched if rank_link.current().launched else alone


# --- collectives on tensors -----------------------------------------------------------------------------------------


def allreduce(
    value: Any,
    name: str | None = None,
    *,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Compression = Compression.none,
) -> Any:
    """Combines a tensor over all ranks, element by element.

    Args:
        value: A tensor, variable or array of any shape, the same shape and type on every rank.
        name: Names the operation; ranks that call in different orders need names.
        op: How to combine.
        prescale_factor: Multiplies the value before it travels.
        postscale_factor: Multiplies the result.
        compression: Type in which it travels.

    Returns:
        A tensor of the same shape and type. A sparse gradient (tf.IndexedSlices) stays sparse.
    """
    return grouped_allreduce(
        [value],
        name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
    )[0]


def grouped_allreduce(
    values: Sequence[Any],
    name: str | None = None,
    *,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Compression = Compression.none,
) -> list[Any]:
    """Combines several tensors over all ranks as one operation; see `allreduce`.

    Returns:
        One tensor for each of `values`, in their order.
    """
    import tensorflow as tf

    if not isinstance(op, ReduceOp):
        raise InvalidArgumentError(f"op={op!r}: use hvd.Average, hvd.Sum, hvd.Min, hvd.Max or hvd.Product")
    tensors = [value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value) for value in values]
    if size() == 1:
        scale = prescale_factor * postscale_factor
        return tensors if scale == 1.0 else [_scaled(tensor, scale) for tensor in tensors]
    horovod = _joined()
    scaling = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    scaling = {key: factor for key, factor in scaling.items() if factor != 1.0}
    results: list[Any] = list(tensors)
    dense = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if dense:
        reduced = _counted(
            lambda: horovod.grouped_allreduce(
                [tensors[index] for index in dense],
                name=name,
                op=getattr(horovod, op.value),
                compression=getattr(horovod.Compression, compression.value),
                **scaling,
            )
        )
        for index, tensor in zip(dense, reduced, strict=True):
            results[index] = tensor
    for index in sorted(set(range(len(tensors))) - set(dense)):
        # Horovod 0.28.1's grouped form gives sparse tensors the shapes of others when dense ones are among them.
        results[index] = _sparse_allreduce(horovod, tensors[index], op, prescale_factor * postscale_factor)
    return results


def _sparse_allreduce(horovod: Any, slices: Any, op: ReduceOp, scale: float) -> Any:
    if op not in (Average, Sum):
        raise InvalidArgumentError(
            f"op={op.value} does not exist for sparse gradients; use Average or Sum, or sparse_as_dense=True"
        )
    reduced = _counted(lambda: horovod.allreduce(slices, op=getattr(horovod, op.value)))
    return reduced if scale == 1.0 else _scaled(reduced, scale)


def _scaled(tensor: Any, scale: float) -> Any:
    import tensorflow as tf

    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(tensor.values, scale), tensor.indices, tensor.dense_shape)
    return tensor * tf.cast(scale, tensor.dtype)


def allgather(value: Any, name: str | None = None) -> Any:
    """Joins the ranks' tensors along the first dimension, in the order of ranks.

    Args:
        value: A tensor of at least one dimension; all but the first must be the same on every rank.
        name: Names the operation.
    """
    import tensorflow as tf

    tensor = tf.convert_to_tensor(value)
    if tensor.shape.rank == 0:
        raise InvalidArgumentError(
            "allgather joins along the first dimension and a scalar has none; use tf.expand_dims(value, 0)"
        )
    return tensor if size() == 1 else _counted(lambda: _joined().allgather(tensor, name=name))


def broadcast(value: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Gives every rank the tensor of `root_rank`; shape and type must be the same on every rank."""
    import tensorflow as tf

    _check_root(root_rank)
    tensor = tf.convert_to_tensor(value)
    return tensor if size() == 1 else _counted(lambda: _joined().broadcast(tensor, root_rank, name=name))


def broadcast_variables(variables: Sequence[Any], root_rank: int = 0) -> None:
    """Gives every rank the values that `variables` (Keras's or TensorFlow's) have on `root_rank`.

    The variables must be the same, in the same order, on every rank.
    """
    _check_root(root_rank)
    if size() == 1:
        return
    import tensorflow as tf

    supported = {tf.float16, tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8, tf.int8, tf.bool}
    for index, variable in enumerate(variables):
        held = getattr(variable, "value", variable)
        tensor = tf.convert_to_tensor(held() if callable(held) else held)
        # Horovod moves no uint32 (Keras's seed generators) and no bfloat16; both fit other types exactly.
        moved = (
            tensor
            if tensor.dtype in supported
            else tf.cast(tensor, tf.int64 if tensor.dtype.is_integer else tf.float32)
        )
        received = broadcast(moved, root_rank, name=f"lakelens.broadcast.{index}")
        variable.assign(tf.cast(received, tensor.dtype))


def barrier() -> None:
    """Returns when every rank has called it."""
    if size() > 1:
        import tensorflow as tf

        allreduce(tf.zeros([], tf.int32), name="lakelens.barrier", op=Sum)


def _joined() -> Any:
    if not _World.initialized:
        raise LaunchError("call hvd.init() before any other hvd function that speaks to the other ranks")
    return _World.horovod


def _counted(collective: Callable[[], Any]) -> Any:
    _joined()
    return _World.counter.around(collective)


def _check_root(root_rank: int) -> None:
    if not 0 <= root_rank < size():
        raise InvalidArgumentError(f"root_rank={root_rank}: ranks are 0 to {size() - 1}")


# --- collectives on Python objects ----------------------------------------------------------------------------------


def broadcast_object(value: Any = None, root_rank: int = 0, name: str | None = None) -> Any:
    """Gives every rank the picklable object of `root_rank`; what other ranks pass is ignored.

    The pickle carries an HMAC of the job's secret, which every rank checks before it unpickles.

    Raises:
        LaunchError: If the HMAC is wrong.
    """
    _check_root(root_rank)
    if size() == 1:
        return value
    import numpy as np

    sealed = _seal(value) if rank() == root_rank else b""
    prefix = name or "lakelens.object"
    length = int(broadcast(np.array([len(sealed)], np.int64), root_rank, name=f"{prefix}.length")[0])
    data = np.frombuffer(sealed, np.uint8) if rank() == root_rank else np.zeros([length], np.uint8)
    received = broadcast(data, root_rank, name=f"{prefix}.bytes").numpy().tobytes()
    return value if rank() == root_rank else _open(received)


def allgather_object(value: Any, name: str | None = None) -> list[Any]:
    """Gives every rank the list of all ranks' picklable objects, by rank; see `broadcast_object`."""
    if size() == 1:
        return [value]
    import numpy as np

    sealed = _seal(value)
    prefix = name or "lakelens.objects"
    lengths = allgather(np.array([len(sealed)], np.int64), name=f"{prefix}.lengths").numpy()
    data = allgather(np.frombuffer(sealed, np.uint8), name=f"{prefix}.bytes").numpy().tobytes()
    ends = np.cumsum(lengths)
    return [_open(data[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _seal(value: Any) -> bytes:
    import cloudpickle

    data: bytes = cloudpickle.dumps(value)
    return hmac.digest(rank_link.current().job_key, data, "sha256") + data


def _open(sealed: bytes) -> Any:
    mac, data = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
    if not hmac.compare_digest(mac, hmac.digest(rank_link.current().job_key, data, "sha256")):
        raise LaunchError(
            "an object that claims to come from another rank was not signed by this job; it was not unpickled"
        )
    return pickle.loads(data)  # noqa: S301 - signed by a rank of this job


# --- parts that import Keras ------------------------------------------------------------------------------------------


def __getattr__(name: str) -> Any:
    import importlib

    if name == "callbacks":
        return importlib.import_module(".callbacks", __package__)
    if name == "DistributedOptimizer":
        from .optimizer import DistributedOptimizer

        make: Callable[..., Any] = DistributedOptimizer
        return make
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
