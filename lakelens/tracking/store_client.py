"""What MLflow's client lacks: an end to each call, and one process at a time that makes a store."""

from __future__ import annotations

import contextlib
import fcntl
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..errors import FeedStalledError, TrackingError
from ..stores.watched import watched

if TYPE_CHECKING:
    from mlflow import MlflowClient

_Result = TypeVar("_Result")

# Long enough for a checkpoint at 10 MB/s.
_ARTIFACTS_TIMEOUT_S = 300.0
_ARTIFACT_CALLS = ("log_artifacts", "log_model_artifacts", "download_artifacts")


def answering(client: MlflowClient, store: str, timeout_s: float, *, large_artifacts: bool) -> MlflowClient:
    """Returns a client each of whose calls ends.

    A server that accepts connections and never answers keeps MLflow's own client for a quarter of an hour per call.

    Args:
        client: The client.
        store: What errors call its store.
        timeout_s: After so many seconds without an answer a call raises a `TrackingError`. The thread that waits for
            the answer is left behind.
        large_artifacts: Whether uploads and downloads may be of checkpoints, and so take 300 seconds.
    """
    return cast("MlflowClient", _AnsweringClient(client, store, timeout_s, large_artifacts))


def large_artifact(transfer: Callable[[], _Result], name: str, store: str) -> _Result:
    """Does an upload or download that may be of a checkpoint.

    Raises:
        TrackingError: If the store has not answered `name` for 300 seconds.
    """
    return _in_time(transfer, name, store, _ARTIFACTS_TIMEOUT_S)


def _in_time(call: Callable[[], _Result], name: str, store: str, timeout_s: float) -> _Result:
    try:
        return watched(call, name, timeout_s)
    except FeedStalledError:
        raise TrackingError(
            f"MLflow's store {store} has not answered {name} for {timeout_s:g} s; check that the server works, or give "
            "another tracking_uri or MLFLOW_TRACKING_URI"
        ) from None


class _AnsweringClient:
    def __init__(self, client: MlflowClient, store: str, timeout_s: float, large_artifacts: bool) -> None:
        self._client = client
        self._store = store
        self._timeout_s = timeout_s
        self._large_artifacts = large_artifacts

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        return functools.partial(self._call, name, value) if callable(value) else value

    def _call(self, name: str, method: Any, *arguments: Any, **options: Any) -> Any:
        call = functools.partial(method, *arguments, **options)
        if self._large_artifacts and name in _ARTIFACT_CALLS:
            return large_artifact(call, name, self._store)
        return _in_time(call, name, self._store, self._timeout_s)


@contextlib.contextmanager
def one_creator(store: Path) -> Iterator[None]:
    """Lets one process at a time open a SQLite store: MLflow makes its tables in many steps and without a lock.

    Args:
        store: Its file.
    """
    with contextlib.ExitStack() as stack:
        # A folder that cannot be written has its store already; one without locks has none for SQLite either.
        with contextlib.suppress(OSError):
            file = stack.enter_context(store.with_name(f"{store.name}.lock").open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
