"""The entries of a table's log, what each says, and when each version was committed by the rule of time travel.

delta-rs' own history leaves out commits without `commitInfo`, numbers the others as if none was missing, and fails on
the first commit of a clone.

A version's time is the in-commit timestamp where the table has them, else the time of the commit's file. Of two file
times that do not ascend, the later version's is a millisecond after the earlier one's.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from ..errors import VersionNotFoundError, VersionUnreadableError
from ..stores.data_files import names_in, read_bytes, times_in

if TYPE_CHECKING:
    from ..table import Table

_COMMIT = re.compile(r"(\d{20})\.json")
_COMPACTED = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*(parquet|json)")
_READ_AT_ONCE = 16


def log_of(table: Table) -> str:
    """Returns the folder of the log."""
    return f"{table.path.rstrip('/')}/_delta_log"


def entry_names(table: Table) -> set[str]:
    """Lists the names of the log's entries; empty without a log."""
    return names_in(log_of(table), table.storage_options)


def entry_times(table: Table) -> dict[str, int]:
    """Lists the log's entries with the times of their last change, in milliseconds since 1970."""
    return times_in(log_of(table), table.storage_options)


def commit_numbers(names: Iterable[str]) -> list[int]:
    """Returns the sorted numbers of the commits that have a separate entry."""
    return sorted(int(found[1]) for name in names if (found := _COMMIT.fullmatch(name)))


def versions_in(names: Iterable[str]) -> tuple[set[int], set[int]]:
    """Finds the versions that entries of a log are named after, and those of them that its entries rebuild."""
    commits, covered, checkpoints = set[int](), set[int](), set[int]()
    for name in names:
        if found := _COMMIT.fullmatch(name):
            commits.add(int(found[1]))
        elif found := _COMPACTED.fullmatch(name):
            covered.update(range(int(found[1]), int(found[2]) + 1))
        elif found := _CHECKPOINT.fullmatch(name):
            checkpoints.add(int(found[1]))
    named, whole, is_whole = commits | checkpoints, set[int](), False
    for version in range(min(named, default=0), max(named, default=-1) + 1):
        is_whole = version in checkpoints or ((is_whole or version == 0) and version in commits | covered)
        if is_whole and version in named:
            whole.add(version)
    return named, whole


def read_commits(table: Table, numbers: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
    """Yields the actions of commits in the given order; none of a commit whose entry is gone."""
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        for start in range(0, len(numbers), _READ_AT_ONCE):
            yield from pool.map(functools.partial(_read_commit, table), numbers[start : start + _READ_AT_ONCE])


def _read_commit(table: Table, number: int) -> list[dict[str, Any]]:
    path = f"{log_of(table)}/{number:020d}.json"
    try:
        text = read_bytes(path, table.storage_options).decode()
        # Not splitlines(): Spark writes U+2028 and its like into its JSON as they are.
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise VersionUnreadableError(
            f"{path} is damaged ({error}), so what version {number} changed is not known; put it back from a copy"
        ) from error


def info_of(actions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the `commitInfo` of a commit: its operation, time and note; empty where it has none."""
    return next((dict(action["commitInfo"]) for action in actions if "commitInfo" in action), {})


def find_note(table: Table, numbers: Sequence[int], text: str) -> int | None:
    """Returns the number of the commit whose `userMetadata` is a text; None if no commit of these numbers has it."""
    for number, actions in zip(numbers, read_commits(table, numbers), strict=True):
        if info_of(actions).get("userMetadata") == text:
            return number
    return None


_ENABLED = "delta.enableInCommitTimestamps"
_FIRST = "delta.inCommitTimestampEnablementVersion"
_START = datetime(1970, 1, 1, tzinfo=timezone.utc)


def commit_times(
    table: Table, files: Mapping[str, int], latest: int, configuration: Mapping[str, str]
) -> dict[int, datetime]:
    """Returns the times of the versions that the log can rebuild; `files` are its entries as by `entry_times`."""
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
