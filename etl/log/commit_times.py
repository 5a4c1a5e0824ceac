"""What a commit's own entry in the log holds, for the notes of lakelens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...stores.data_files import read_bytes

_COMMIT_DIGITS = 20
_FIRST_BYTES = 1 << 16


def commit_info(version: int, log: str, storage_options: Mapping[str, str] | None) -> dict[str, Any] | None:
    """Reads what a commit says of itself; None if it says nothing.

    Args:
        version: Number of the version.
        log: Where the table's log is.
        storage_options: Access to an object store.

    Raises:
        FileNotFoundError: If the log no longer has the commit.
    """
    commit = f"{log.rstrip('/')}/_delta_log/{version:0{_COMMIT_DIGITS}d}.json"
    # It is the first line, as a rule; the other lines may be many megabytes.
    return _info_in(read_bytes(commit, storage_options, end=_FIRST_BYTES)) or _info_in(
        read_bytes(commit, storage_options)
    )


def _info_in(commit: bytes) -> dict[str, Any] | None:
    for line in commit.splitlines():
        if b'"commitInfo"' in line[:20]:
            try:
                info: dict[str, Any] = json.loads(line)["commitInfo"]
            except ValueError:  # cut off
                return None
            return info
    return None
