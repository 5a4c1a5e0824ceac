"""Options of Horovod's functions that have no effect or are not supported here."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidArgumentError, NotSupportedError
from .membership import ONE_WORLD, rank, size
from .reduce_ops import Compression


class _AllRanks:
    """Horovod's `global_process_set`: the set of all ranks, the only one."""

    process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        """The numbers of its ranks."""
        return list(range(size()))

    def size(self) -> int:
        """Number of its ranks."""
        return size()

    def rank(self) -> int:
        """This process's number in it."""
        return rank()

    def included(self) -> bool:
        """Returns whether this process is in it."""
        return True

    def __repr__(self) -> str:
        return "hvd.global_process_set"


global_process_set = _AllRanks()

_BUILT_FOR = "operations run where Horovod was built for; leave it out"
# The values without effect, besides None, and what to write instead of others.
_KNOWN: dict[str, tuple[tuple[Any, ...], str]] = {
    "compression": ((Compression.none,), "tf.cast the value before, and the result back"),
    "device_dense": (("",), _BUILT_FOR),
    "device_sparse": (("",), _BUILT_FOR),
    "ignore_name_scope": ((False,), "name operations outside of tf.name_scope, with the same names on every rank"),
    "legacy_opts": ((False,), "Keras 3 has no legacy optimizers; leave it out"),
    "postscale_factor": ((1.0,), "multiply the result"),
    "prescale_factor": ((1.0,), "multiply the value"),
    "process_set": ((global_process_set,), ONE_WORLD),
    "scale_local_gradients": ((True,), "every variable is shared by all ranks; leave it out"),
    "session": ((), "TensorFlow 2 has no sessions; leave it out, and pass name=... by keyword"),
    "use_locking": ((False,), "Keras's optimizers take no locks; leave it out"),
}


def refuse(**options: Any) -> None:
    """Refuses options of Horovod that would change the result and are not supported here, and unknown ones."""
    for name, value in options.items():
        if name not in _KNOWN:
            raise InvalidArgumentError(f"{name}={value!r}: there is no such option")
        neutral, advice = _KNOWN[name]
        if value is not None and value not in neutral:
            raise NotSupportedError(f"{name}={value!r} is not supported: {advice}")


def check_name(name: str | None) -> None:
    """Checks the name of an operation, Horovod's second positional argument."""
    if name is not None and not isinstance(name, str):
        raise InvalidArgumentError(f"name={name!r}: the second argument names the operation; pass others by keyword")
