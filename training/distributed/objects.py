"""Sends Python objects between ranks: pickles with an HMAC of the job's secret, checked before unpickling."""

from __future__ import annotations

import hmac
import pickle
from typing import Any

from ...errors import LaunchError
from ..rank import process_context
from .collectives import allgather, broadcast, check_root
from .horovod_options import refuse
from .membership import rank, size

_MAC_BYTES = 32


def broadcast_object(
    obj: Any = None, root_rank: int = 0, session: Any = None, name: str | None = None, process_set: Any = None
) -> Any:
    """Broadcasts the picklable object of `root_rank` to every rank; objects of other ranks are ignored.

    Args:
        obj: The object.
        root_rank: The rank whose object is broadcast.
        session: Horovod's option; only its default is supported.
        name: Names the operation.
        process_set: Horovod's option; only `hvd.global_process_set` is supported.

    Raises:
        NotSupportedError: If an option of Horovod is not supported here.
        LaunchError: If the object was not signed by a rank of this job.
    """
    refuse(session=session, process_set=process_set)
    check_root(root_rank)
    if size() == 1:
        return obj
    import numpy as np

    sealed = seal(obj) if rank() == root_rank else b""
    prefix = name or "lakelens.object"
    length = int(broadcast(np.array([len(sealed)], np.int64), root_rank, name=f"{prefix}.length")[0])
    data = np.frombuffer(sealed, np.uint8) if rank() == root_rank else np.zeros([length], np.uint8)
    received = broadcast(data, root_rank, name=f"{prefix}.bytes").numpy().tobytes()
    return obj if rank() == root_rank else unseal(received)


def allgather_object(obj: Any, session: Any = None, name: str | None = None, process_set: Any = None) -> list[Any]:
    """Gathers the picklable objects of all ranks as a list, by rank; see `broadcast_object`."""
    refuse(session=session, process_set=process_set)
    if size() == 1:
        return [obj]
    import numpy as np

    sealed = seal(obj)
    prefix = name or "lakelens.objects"
    lengths = allgather(np.array([len(sealed)], np.int64), name=f"{prefix}.lengths").numpy()
    data = allgather(np.frombuffer(sealed, np.uint8), name=f"{prefix}.bytes").numpy().tobytes()
    ends = np.cumsum(lengths)
    return [unseal(data[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def seal(value: Any) -> bytes:
    """Pickles an object and prepends the HMAC of the job's secret."""
    import cloudpickle

    data: bytes = cloudpickle.dumps(value)
    return hmac.digest(process_context.current().job_key, data, "sha256") + data


def unseal(sealed: bytes) -> Any:
    """Checks the HMAC and unpickles."""
    mac, data = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
    if not hmac.compare_digest(mac, hmac.digest(process_context.current().job_key, data, "sha256")):
        raise LaunchError(
            "an object that claims to come from another rank was not signed by this job; it was not unpickled"
        )
    return pickle.loads(data)  # noqa: S301 - signed by a rank of this job
