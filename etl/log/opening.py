"""Opens a Delta table at a version, by delta-rs and without a JVM, or says why not and which versions there are."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import (
    InvalidArgumentError,
    NotADeltaTableError,
    StoreError,
    TableError,
    UnsupportedTableFeatureError,
    VersionNotFoundError,
    VersionUnreadableError,
)
from ...locations import absolute, has_scheme, is_table_name
from ...stores.data_files import local_form, store_error, unknown_store
from ...stores.options import delta_options
from ...table import Version, version_of
from .commit_times import commit_times
from .log_files import LogFiles, ranges_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

# delta-rs walks through all numbers up to the one that is asked for: minutes and gigabytes for a date taken as one.
_LIKELY_NUMBER = 100_000


# Letters of a name to Spark and fsspec; to delta-rs an escape, a query or a fragment, as in any URL.
_OF_A_URL = re.compile(r"%[0-9A-Fa-f]{2}|[?#]")


@contextmanager
def log_of(place: str, *, whole: bool = False) -> Iterator[str]:
    """Returns the place at which delta-rs finds the log: dbfs:/ where Databricks mounts it, and a detour for one fault.

    delta-rs decodes a percent sign in a table's path twice and then misses the folder, so such a table is opened
    through a folder that holds links to its log and, if asked for, to everything beside it. Nothing is written there.

    Raises:
        InvalidArgumentError: If the place is in an object store and delta-rs would find another one there.
    """
    path = local_form(place)
    if path is None:
        yield _uri_for_delta_rs(place)
        return
    if "%" not in path or not (Path(path) / "_delta_log").is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="lakelens-log-") as folder:
        for entry in Path(path).iterdir() if whole else [Path(path) / "_delta_log"]:
            (Path(folder) / entry.name).symlink_to(entry, target_is_directory=entry.is_dir())
        yield folder


def _uri_for_delta_rs(uri: str) -> str:
    found = _OF_A_URL.search(uri)
    if found:
        raise InvalidArgumentError(
            f"{uri}: without Spark, {found[0]!r} in the path of a table in an object store would be read as a part of "
            "a URL, and another table opened; write the name without escapes, or move the table to a folder without it"
        )
    # Its gcs:// is another client, which takes none of the options.
    return f"gs:{uri.partition(':')[2]}" if uri.lower().startswith("gcs:") else uri


def as_version(place: str, version: Version, storage_options: Mapping[str, str] | None = None) -> int | datetime | None:
    """Turns what a user may call a version into a number, a time or None for the latest.

    Raises:
        InvalidArgumentError: If it is of another type.
        VersionNotFoundError: If it is a text that is no number, no time and no pin of the table.
        NotADeltaTableError: If it is such a text, and there is no table.
    """
    text = version_of(version)
    if not isinstance(text, str):
        return text
    pinned = _pinned_version(place, text, storage_options)
    if pinned is not None:
        return pinned
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        if not has_scheme(place) and not (Path(place) / "_delta_log").is_dir():
            raise _no_table(place, "it has no _delta_log/") from None
        raise VersionNotFoundError(
            f"{place}: {version!r} is no version number, no time (ISO 8601) and no pin of this table"
            f"{_known_pins(place, storage_options)}; give one of these or 'latest'"
        ) from None


def _pinned_version(place: str, name: str, storage_options: Mapping[str, str] | None) -> int | None:
    from ..pins.pins import version_of_pin

    found: int | None = version_of_pin(place, name, storage_options)
    return found


def _known_pins(place: str, storage_options: Mapping[str, str] | None) -> str:
    from ..pins.pins import pins

    known = pins(place, storage_options)
    return f" (its pins: {', '.join(sorted(known))})" if known else " (it has no pins)"


def location_of(location: str | Path) -> str:
    """Returns a table's absolute path or URI, without a slash at its end.

    Raises:
        NotADeltaTableError: If it is a catalog name, which only Spark can resolve.
    """
    place = absolute(location)
    if is_table_name(place):
        raise NotADeltaTableError(
            f"{place} is a catalog name; give the table's path: the location that DESCRIBE DETAIL {place} shows"
        )
    return place.rstrip("/") or "/"


def open_log(
    place: str, log: str, version: int | datetime | None, storage_options: Mapping[str, str] | None
) -> DeltaTable:
    """Opens a table at a version.

    Args:
        place: The table, as messages call it.
        log: Where delta-rs finds it: what `log_of` gives.
        version: A number; a time, which means the last version at or before it; or None for the latest.
        storage_options: Access to an object store.

    Raises:
        NotADeltaTableError: If there is no table.
        InvalidArgumentError: If no store is known for the location's scheme.
        StoreError: If the object store cannot be reached or refuses.
        VersionNotFoundError: If it has no such version; says which it has.
        VersionUnreadableError: If the log has the version's entries, and they cannot be read.
        UnsupportedTableFeatureError: If delta-rs does not know one of its features.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError

    number = version if isinstance(version, int) else None
    if number is not None and not 0 <= number <= _LIKELY_NUMBER:
        _require_entries(place, log, number, storage_options)
    try:
        table = DeltaTable(log, version=number, storage_options=delta_options(storage_options) or None)
    except DeltaProtocolError as error:
        raise UnsupportedTableFeatureError(unsupported(place, number, str(error))) from error
    except (TableNotFoundError, DeltaError, OSError) as error:
        if isinstance(error, OSError) and has_scheme(log):
            raise store_error(place, error) from error
        if "Unknown scheme" in str(error):
            raise unknown_store(place) from error
        _require_entries(place, log, number, storage_options)
        raise _unreadable(place, number, error) from error
    if isinstance(version, datetime):
        return _at_time(place, log, table, version, storage_options)
    return table


def place_of(location: str | Path, storage_options: Mapping[str, str] | None = None) -> str:
    """Returns the place of a table whatever its versions use, and whether or not they can be read.

    Raises:
        NotADeltaTableError: If there is no table.
        InvalidArgumentError: If no store is known for the location's scheme.
        StoreError: If the object store cannot be reached or refuses.
        VersionUnreadableError: If a disk does not list the log.
    """
    place = location_of(location)
    with log_of(place) as log:
        _require_entries(place, log, None, storage_options)
    return place


def _require_entries(place: str, log: str, number: int | None, storage_options: Mapping[str, str] | None) -> None:
    """Lists the log: only that can tell a version which is not there from one that cannot be read now."""
    try:
        entries = LogFiles(log, storage_options)
    except StoreError:
        raise
    except OSError as error:
        raise _unreadable(place, number, error) from error
    if not entries.versions:
        raise _no_table(place, "it has no _delta_log/ with a commit")
    if number is not None and (number < 0 or not entries.can_rebuild(number)):
        whole = ranges_of([version for version in entries.versions if entries.can_rebuild(version)])
        raise VersionNotFoundError(
            f"{place}: version {number} does not exist or can no longer be rebuilt; it has versions {whole or 'none'}"
        )


def _unreadable(place: str, number: int | None, error: Exception) -> TableError:
    """Makes the error about a table or version that the log has entries of and that does not open."""
    text = str(error)
    if any(word in text.lower() for word in ("unsupported", "unknown feature", "not supported")):
        return UnsupportedTableFeatureError(unsupported(place, number, text))
    what = "the log of the table" if number is None else f"the log of version {number}"
    return VersionUnreadableError(
        f"{place}: {what} is there and cannot be read: {text.splitlines()[0] if text else error!r}. Try again if the "
        "disk or store was away; if an entry is damaged, put it back from a copy"
    )


def _no_table(place: str, why: str) -> NotADeltaTableError:
    return NotADeltaTableError(f"{place} holds no Delta table ({why}); give the folder that contains _delta_log/")


def _at_time(
    place: str, log: str, table: DeltaTable, moment: datetime, storage_options: Mapping[str, str] | None
) -> DeltaTable:
    """Loads the last version committed at or before a time: after the last commit, the last version.

    delta-rs answers a time before the first commit with the first version; like Spark, we refuse it, since the log does
    not tell what the table was then.
    """
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    commits = commit_times(table, log, storage_options)
    eligible = [version for version, committed in commits.items() if committed <= moment]
    if not eligible:
        span = f"{min(commits.values()).isoformat()} to {max(commits.values()).isoformat()}" if commits else "no times"
        raise VersionNotFoundError(
            f"{place}: no version is known at {moment.isoformat()}; its log covers {span} "
            f"(versions {min(commits, default=0)} to {table.version()})"
        )
    table.load_as_version(max(eligible))
    return table


def unsupported(place: str, version: int | None, what: str) -> str:
    """Says that a version cannot be read from its Parquet files alone, and the way out."""
    at = "" if version is None else f"@{version}"
    return (
        f"{place}{at} uses {what}: its Parquet files alone would give wrong rows. Have Spark make a plain copy of the "
        "version: lakelens.materialize(spark, table, version, folder), and feed with materialize=folder."
    )
