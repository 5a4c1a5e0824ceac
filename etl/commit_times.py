"""When the versions of a table were committed, also where delta-rs cannot read a commit's own account of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ..stores import names_in, read_bytes

if TYPE_CHECKING:
    from deltalake import DeltaTable

_COMMIT_DIGITS = 20


def commit_times(
    table: DeltaTable, log: str, storage_options: Mapping[str, str], limit: int | None = None
) -> dict[int, datetime]:
    """Lists the commits that the log still holds, up to the table's version.

    Args:
        table: The table.
        log: Where its log is.
        storage_options: Access to an object store.
        limit: Number of commits, the newest first; None is all.

    Returns:
        Time of each commit that tells one, by version.
    """
    from deltalake.exceptions import DeltaError

    try:
        commits: list[dict[str, Any]] = table.history(limit)
    except DeltaError:
        # A shallow clone's first commit says that it read version -1, which delta-rs takes for damage.
        return _from_files(table.version(), log, storage_options, limit)
    return {int(c["version"]): _utc(c["timestamp"]) for c in commits if "timestamp" in c and "version" in c}


def _from_files(latest: int, log: str, storage_options: Mapping[str, str], limit: int | None) -> dict[int, datetime]:
    folder = f"{log.rstrip('/')}/_delta_log"
    versions = sorted(
        int(name[:_COMMIT_DIGITS])
        for name in names_in(folder, storage_options)
        if name.endswith(".json") and len(name) == _COMMIT_DIGITS + len(".json") and name[:_COMMIT_DIGITS].isdigit()
    )
    known = [version for version in versions if version <= latest]
    times = {}
    for version in known if limit is None else known[-limit:]:
        milliseconds = _time_of(read_bytes(f"{folder}/{version:020d}.json", storage_options))
        if milliseconds is not None:
            times[version] = _utc(milliseconds)
    return times


def _time_of(commit: bytes) -> int | None:
    for line in commit.splitlines():
        if b'"commitInfo"' in line[:20]:
            said = json.loads(line)["commitInfo"]
            milliseconds = said.get("inCommitTimestamp", said.get("timestamp"))
            return None if milliseconds is None else int(milliseconds)
    return None


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
