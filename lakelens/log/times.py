"""When each version was committed, by the rule of Delta's time travel: as Spark's `timestampAsOf` and DESCRIBE HISTORY.

That is the in-commit timestamp where the table has them, else the time of the commit's file. Of two file times that do
not ascend, the later version's is a millisecond after the earlier one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from ..errors import VersionNotFoundError
from .entries import commit_numbers, info_of, read_commits, versions_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..table import Table

_ENABLED = "delta.enableInCommitTimestamps"
_FIRST = "delta.inCommitTimestampEnablementVersion"
_START = datetime(1970, 1, 1, tzinfo=timezone.utc)


def commit_times(
    table: Table, files: Mapping[str, int], latest: int, configuration: Mapping[str, str]
) -> dict[int, datetime]:
    """Returns the times of the versions that the log can rebuild.

    `files` are its entries as `entry_times` lists them, `configuration` the table's properties at its latest version.
    """
    earliest = min(versions_in(files)[1], default=0)
    numbers = [number for number in commit_numbers(files) if earliest <= number <= latest]
    first = latest + 1
    if configuration.get(_ENABLED, "").lower() == "true":
        first = int(configuration.get(_FIRST, 0))
    times = _ascending({number: files[f"{number:020d}.json"] for number in numbers if number < first})
    times |= _in_commits(table, [number for number in numbers if number >= first])
    return {number: _START + timedelta(milliseconds=time) for number, time in times.items()}


def last_version_by(times: Mapping[int, datetime], moment: datetime) -> int | None:
    """Finds the last version at or before a time, which counts in whole milliseconds; None before the first one."""
    moment += timedelta(microseconds=999 - moment.microsecond % 1000)
    return max((version for version, time in times.items() if time <= moment), default=None)


def _ascending(times: Mapping[int, int]) -> dict[int, int]:
    found, before = dict[int, int](), None
    for number, time in sorted(times.items()):
        before = time if before is None else max(time, before + 1)
        found[number] = before
    return found


def _in_commits(table: Table, numbers: Sequence[int]) -> dict[int, int]:
    found = dict[int, int]()
    for number, actions in zip(numbers, read_commits(table, numbers), strict=True):
        time = info_of(actions).get("inCommitTimestamp")
        if time is None:
            raise VersionNotFoundError(
                f"{table.path}: its log holds commits without a time, such as that of version {number}, so that a time "
                "does not name a version; give the number of the version"
            )
        found[number] = int(time)
    return found
