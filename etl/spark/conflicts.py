"""Conflicts between writers that Delta reports, as `TableConflictError`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...errors import TableConflictError
from ...retries import Retries
from .failures import cause_of

# Of writers that begin at the same version one commits, so that each of ten needs at most ten attempts.
RETRIES = Retries(attempts=12, first_wait_s=0.5, longest_wait_s=15.0)

_CONFLICTS = (
    "ConcurrentTransactionException",
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentWriteException",
    "MetadataChangedException",
    "ProtocolChangedException",
    "ConcurrentModificationException",
    # Two that create the same table at once.
    "DELTA_TABLE_ALREADY_EXISTS",
    "TABLE_OR_VIEW_ALREADY_EXISTS",
    "DELTA_PATH_EXISTS",
    "TableAlreadyExistsException",
)


@contextlib.contextmanager
def conflicts_named(read: str) -> Iterator[None]:
    """Raises conflicts that Delta reports as `TableConflictError`, and every other error as it is."""
    try:
        yield
    except Exception as error:
        conflict = _conflict_of(error, read)
        if conflict is None:
            raise
        raise conflict from error


def _conflict_of(error: Exception, read: str) -> TableConflictError | None:
    text = f"{type(error).__name__} {error}"
    cause = getattr(error, "java_exception", None)
    if cause is not None:
        text += str(cause.getClass().getName())
    if not any(name in text for name in _CONFLICTS):
        return None
    return TableConflictError(f"another writer was faster than the one that had read {read}: {cause_of(error)}")
