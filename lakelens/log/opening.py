"""Opens a Delta table at a version or a time, by delta-rs and without a JVM, or raises which versions there are."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..errors import (
    InvalidArgumentError,
    NotADeltaTableError,
    StoreError,
    TableError,
    UnsupportedTableFeatureError,
    VersionNotFoundError,
    VersionUnreadableError,
)
from ..ledger.protection import pinned_version, pins
from ..locations import has_scheme
from ..stores.clients import delta_options, require_no_fork, store_error, unknown_store
from ..stores.data_files import delta_uri, misread_part
from .entries import commit_times, entry_names, entry_times, last_version_by, versions_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from ..table import Table

SETTING = "spark.sql.session.timeZone"
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?P<hours>\d{1,2})(?::?(?P<minutes>\d{2}))?")
_MODULES = ("pyspark.sql", "pyspark.sql.connect.session")


def time_in(text: str) -> datetime | None:
    """Reads a time as ISO 8601 writes it; None for another text."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None


def with_zone(version: str | datetime, zone: Callable[[], tzinfo]) -> str | datetime:
    """Gives a zone to a version that is a time without one, and leaves every other as it is."""
    moment = time_in(version) if isinstance(version, str) else version
    return version if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=zone())


def zone_named(name: str) -> tzinfo:
    """Returns a zone by the name that Spark has for it: a region, or an offset such as `+02:00`."""
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        shift = timedelta(hours=int(offset["hours"]), minutes=int(offset["minutes"] or 0))
        return timezone(-shift if offset["sign"] == "-" else shift)
    try:
        return timezone.utc if name in ("Z", "UTC") else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidArgumentError(
            f"{SETTING} = {name!r} is not a zone that Python knows; give the time with an offset, such as +02:00"
        ) from error


def zone_of_session() -> tzinfo | None:
    """Returns the zone of the Spark session of this thread or process; None without a session."""
    for name in _MODULES:
        sessions: Any = getattr(sys.modules.get(name), "SparkSession", None)
        session = None if sessions is None else sessions.getActiveSession()
        session = getattr(sessions, "_instantiatedSession", None) if session is None else session
        if session is not None:
            return zone_named(session.conf.get(SETTING))
    return None


# delta-rs walks through all numbers up to the requested one: minutes and gigabytes if a date is read as a number.
_LIKELY_NUMBER = 100_000
_NAMED_PINS = 20


def open_table(table: Table) -> DeltaTable:
    """Opens a table at its version, without looking at what readers must know of it."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError

    wanted = _number_or_time(table)
    number = wanted if isinstance(wanted, int) else None
    uri = uri_for_delta_rs(table)
    if number is not None and not 0 <= number <= _LIKELY_NUMBER:
        require_entries(table, number)
    require_no_fork(table.path, "deltalake")
    try:
        found = DeltaTable(uri, version=number, storage_options=delta_options(table.storage_options) or None)
    except DeltaProtocolError as error:
        raise UnsupportedTableFeatureError(unsupported(table.path, number, str(error))) from error
    except (TableNotFoundError, DeltaError, OSError) as error:
        if isinstance(error, OSError) and has_scheme(uri):
            raise store_error(table.path, error) from error
        if "Unknown scheme" in str(error):
            raise unknown_store(table.path) from error
        require_entries(table, number)
        raise _unreadable(table.path, number, error) from error
    return open_table(table.at(_last_version_by(table, found, wanted))) if isinstance(wanted, datetime) else found


def open_whole(table: Table) -> DeltaTable:
    """Opens a table at a version that the entries of its log rebuild, to read its data files or to write on top."""
    opened = open_table(table)
    # delta-rs takes what a commit's checksum file says for the commits before it, and leaves out their data files.
    require_entries(table, opened.version())
    return opened


def uri_for_delta_rs(table: Table) -> str:
    """Returns a table's location as delta-rs takes it."""
    part = misread_part(table.path)
    if part is not None:
        raise InvalidArgumentError(
            f"{table.path}: without Spark, {part!r} in the path of a table would be read as something else, and "
            "another table opened; write the name without escapes, or move the table to a folder without it"
        )
    return delta_uri(table.path)


def require_entries(table: Table, number: int | None = None) -> None:
    """Lists the log: this distinguishes a missing version from one that cannot be read now."""
    try:
        names = entry_names(table)
    except StoreError:
        raise
    except OSError as error:
        raise _unreadable(table.path, number, error) from error
    named, whole = versions_in(names)
    if not named:
        raise NotADeltaTableError(
            f"{table.path} holds no Delta table (it has no _delta_log/ with a commit); give the folder that contains "
            "_delta_log/"
        )
    if number is not None and number not in whole:
        raise VersionNotFoundError(
            f"{table.path}: version {number} does not exist or can no longer be rebuilt; it has versions "
            f"{ranges_of(sorted(whole)) or 'none'}"
        )


def ranges_of(numbers: Sequence[int]) -> str:
    """Writes sorted numbers as people do: `0, 3 to 7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in spans)


def times_of(table: Table) -> dict[int, datetime]:
    """Returns when the versions of a table were committed, as far as its log can rebuild them."""
    return _times_until(table, open_table(table.at(None)))


def _times_until(table: Table, latest: DeltaTable) -> dict[int, datetime]:
    return commit_times(table, entry_times(table), latest.version(), latest.metadata().configuration)


def _number_or_time(table: Table) -> int | datetime | None:
    if not isinstance(table.version, str):
        return table.version
    pinned = pinned_version(table, table.version)
    if pinned is not None:
        return pinned
    moment = time_in(table.version)
    if moment is None:
        require_entries(table)
        names = sorted(pins(table))
        known = f"its pins: {', '.join(names[:_NAMED_PINS])}" if names else "it has no pins"
        raise VersionNotFoundError(
            f"{table.path}: {table.version!r} is not a version number, time (ISO 8601) or pin of this table "
            f"({known}); give one of these or 'latest'"
        )
    return moment


def _last_version_by(table: Table, latest: DeltaTable, moment: datetime) -> int:
    """Finds the last version committed at or before a time."""
    # delta-rs also answers times before the first commit and after the last. Like Spark, we refuse both.
    if moment.tzinfo is None:
        zone = zone_of_session()
        if zone is None:
            raise InvalidArgumentError(
                f"{table.path}: the time {moment.isoformat()} has no zone, and there is no Spark session, whose "
                f"spark.sql.session.timeZone would count; give it with one, such as {moment.isoformat()}Z"
            )
        moment = moment.replace(tzinfo=zone)
    known = _times_until(table, latest)
    found = last_version_by(known, moment)
    last = max(known.values(), default=moment)
    if moment.replace(microsecond=moment.microsecond // 1000 * 1000) > last:
        raise VersionNotFoundError(
            f"{table.path}: {moment.isoformat()} is after the last commit, version {latest.version()} of "
            f"{last.isoformat()}; give a time until then, or 'latest'"
        )
    if found is None:
        span = f"{min(known.values()).isoformat()} to {max(known.values()).isoformat()}" if known else "no times"
        raise VersionNotFoundError(
            f"{table.path}: found no version at {moment.isoformat()}; its log covers {span} "
            f"(versions {min(known, default=0)} to {latest.version()})"
        )
    return found


def _unreadable(location: str, number: int | None, error: Exception) -> TableError:
    """Makes the error about a table or version that the log has entries of and that does not open."""
    text = str(error)
    if any(word in text.lower() for word in ("unsupported", "unknown feature", "not supported")):
        return UnsupportedTableFeatureError(unsupported(location, number, text))
    what = "the log of the table" if number is None else f"the log of version {number}"
    return VersionUnreadableError(
        f"{location}: {what} is there and cannot be read: {text.splitlines()[0] if text else error!r}. Try again if "
        "the disk or store was away; if an entry is damaged, put it back from a copy"
    )


def unsupported(location: str, version: int | None, what: str) -> str:
    """Names what keeps a version from being read without Spark, and the way out."""
    at = "" if version is None else f"@{version}"
    of_version = "" if version is None else f".option('versionAsOf', {version})"
    return (
        f"{location}{at} uses {what}, which lakelens cannot read without Spark. Have Spark write a plain copy, and "
        f"read that: spark.read.format('delta'){of_version}.load({location!r}).write.format('delta')"
        ".save('<another folder>')"
    )
