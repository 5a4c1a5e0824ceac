"""When the versions of a table were committed, also where delta-rs cannot read a commit's own account of itself."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from ...stores.data_files import names_in, read_bytes

if TYPE_CHECKING:
    from deltalake import DeltaTable

logger = logging.getLogger(__name__)

_COMMIT_DIGITS = 20
_FIRST_BYTES = 1 << 16


def commit_times(latest: DeltaTable, log: str, storage_options: Mapping[str, str] | None) -> dict[int, datetime]:
    """Lists the commits that the log still holds.

    Args:
        latest: The table at its latest version: of an earlier one, delta-rs numbers the commits wrongly.
        log: Where its log is.
        storage_options: Access to an object store.

    Returns:
        Time of each commit that tells one, by version.
    """
    from deltalake.exceptions import DeltaError

    try:
        commits: list[dict[str, Any]] = latest.history()
    except DeltaError:
        # A shallow clone's first commit says that it read version -1, which delta-rs takes for damage.
        return _from_files(log, storage_options)
    return {int(c["version"]): _utc(c["timestamp"]) for c in commits if "timestamp" in c and "version" in c}


def commit_time(version: int, log: str, storage_options: Mapping[str, str] | None) -> datetime | None:
    """Reads when one version was committed; None if the log no longer says, or cannot be read here.

    Args:
        version: Number of the version.
        log: Where the table's log is.
        storage_options: Access to an object store.
    """
    try:
        info = commit_info(version, log, storage_options) or {}
    except FileNotFoundError:
        return None
    except (UsageError, OSError) as error:
        # delta-rs reaches stores that fsspec has no package or no access for; only the time stays unknown.
        logger.info("%s cannot be read (%s), so the time of version %d is unknown", log, error, version)
        return None
    milliseconds = info.get("inCommitTimestamp", info.get("timestamp"))
    return None if milliseconds is None else _utc(int(milliseconds))


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


def _from_files(log: str, storage_options: Mapping[str, str] | None) -> dict[int, datetime]:
    versions = sorted(
        int(name[:_COMMIT_DIGITS])
        for name in names_in(f"{log.rstrip('/')}/_delta_log", storage_options)
        if name.endswith(".json") and len(name) == _COMMIT_DIGITS + len(".json") and name[:_COMMIT_DIGITS].isdigit()
    )
    times = {version: commit_time(version, log, storage_options) for version in versions}
    return {version: time for version, time in times.items() if time is not None}


def _info_in(commit: bytes) -> dict[str, Any] | None:
    for line in commit.splitlines():
        if b'"commitInfo"' in line[:20]:
            try:
                info: dict[str, Any] = json.loads(line)["commitInfo"]
            except ValueError:  # cut off
                return None
            return info
    return None


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
