"""This process's membership in the world of ranks: joining, leaving, and its rank.

With one process nothing here imports Horovod.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import LaunchError, MissingDependencyError, NotSupportedError
from ..rank import process_context
from ..rank.frames import Kind

ONE_WORLD = "all ranks of a job are one world; start one HorovodRunner for each group of ranks"


class _World:
    """The state of this process."""

    initialized = False
    left = False
    horovod: Any = None
    counter: Any = None
    lock = threading.Lock()


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the other ranks; returns when all have joined. A second call does nothing.

    If the rank has a GPU, TensorFlow uses only this one, with memory growth.

    Args:
        comm: Horovod's option; only its default is supported.
        process_sets: The same.

    Raises:
        NotSupportedError: If only some of the ranks are to form a world or a process set.
        MissingDependencyError: If the world is larger than one and Horovod is missing.
        LaunchError: If this process had already left the world with `shutdown()`.
    """
    for name, value in (("comm", comm), ("process_sets", process_sets)):
        if value is not None and value not in ([], ()):
            raise NotSupportedError(f"{name}={value!r} is not supported: {ONE_WORLD}")
    with _World.lock:
        if _World.initialized:
            return
        if _World.left:
            raise LaunchError(
                "hvd.init() after hvd.shutdown(): a rank joins its world once; call shutdown() last or not at all"
            )
        if size() > 1:
            link = process_context.current()
            link.send(Kind.JOINING)
            _World.horovod = _import_horovod()
            if link.launched:
                _require_interface(os.environ["HOROVOD_GLOO_IFACE"])
            _World.horovod.init()
            link.send(Kind.JOINED)
            from .collective_counter import CollectiveCounter

            _World.counter = CollectiveCounter(link)
        _World.initialized = True
    _use_own_gpu()


def _import_horovod() -> Any:
    try:
        import horovod.tensorflow as horovod
    except ImportError as error:
        from ...horovod_build import COMMAND, problem

        raise MissingDependencyError(
            problem() or f"Horovod cannot be imported ({error}); compile it again: {COMMAND} --force"
        ) from error
    return horovod


def _require_interface(interface: str) -> None:
    """Checks that all of Gloo will listen on `interface`."""
    from ...horovod_build import COMMAND, is_changed
    from ..rank.network import host_name_is_on

    if not is_changed() and not host_name_is_on(interface):
        raise LaunchError(
            f"lakelens did not compile this Horovod: it listens on the address of the host name "
            f"{socket.gethostname()!r}, which is not on the interface {interface}. Compile it (3 minutes, once): "
            f"{COMMAND}; or let the host name resolve to an address of that interface"
        )


def _use_own_gpu() -> None:
    own = os.environ.get("LAKELENS_GPU")
    if own is None:
        if rank() == 0 and process_context.current().launched and "CUDA_VISIBLE_DEVICES" not in os.environ:
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
    """Returns whether this process has joined."""
    return _World.initialized


def rank() -> int:
    """This process's number, 0 to `size() - 1`."""
    return _place("HOROVOD_RANK", process_context.current().rank, 0)


def size() -> int:
    """Number of processes in the world."""
    return _place("HOROVOD_SIZE", process_context.current().size, 1)


def local_rank() -> int:
    """This process's number among those on its host."""
    return _place("HOROVOD_LOCAL_RANK", process_context.current().local_rank, 0)


def local_size() -> int:
    """Number of processes on this host."""
    return _place("HOROVOD_LOCAL_SIZE", process_context.current().local_size, 1)


def cross_rank() -> int:
    """This host's number among the hosts."""
    return _place("HOROVOD_CROSS_RANK", 0, 0)


def cross_size() -> int:
    """Number of hosts."""
    return _place("HOROVOD_CROSS_SIZE", 1, 1)


def attempt() -> int:
    """0 for the first start of the job, 1 after its first restart, and so on."""
    return process_context.current().attempt


def _place(variable: str, launched: int, alone: int) -> int:
    """A rank's place: from lakelens' launcher, else from another Horovod launcher's environment, else one process."""
    if process_context.current().launched and process_context.current().size == 1:
        return launched
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else launched if process_context.current().launched else alone


def joined() -> Any:
    """Returns Horovod's module once this process has joined; None in a world of one process."""
    if not _World.initialized:
        raise LaunchError("call hvd.init() before any other hvd function that communicates with other ranks")
    return _World.horovod


def counted(collective: Callable[[], Any], inputs: Sequence[Any]) -> Any:
    """Calls a function that makes one collective operation of `inputs`, so that the driver sees who waits."""
    joined()
    return _World.counter.around(collective, inputs)
