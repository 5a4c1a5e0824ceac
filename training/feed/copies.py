"""Plain copies of versions whose Parquet files alone would give wrong rows: made by Spark, kept by table and version.

A copy is a Delta table of its own at `<folder>/<id of the table>/<version>-<random>`, without deletion vectors, column
mapping or any other feature. Its only commit says what it is a copy of; a folder without that commit is no copy, so
that one that was cut short is never read.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CopyError
from ...etl.log.snapshot import Snapshot, VersionIdentity, identify, locate, open_snapshot
from ...locations import absolute_path
from ...options import named_options
from ...spark.port import is_running
from ...spark.session import is_connect
from ...stores.data_files import file_system, local_form, names_in, reaching, read_bytes
from ...table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_COMMIT = "_delta_log/00000000000000000000.json"
_MARK = "copy"
# Without features: what Delta's defaults or a cluster's settings would otherwise turn on.
_PLAIN = {
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.enableTypeWidening": "false",
    "delta.enableRowTracking": "false",
    "delta.enableChangeDataFeed": "false",
}
# A copy that is still being written after so long was cut short.
_ABANDONED_S = 24 * 3600


@dataclass(frozen=True)
class TableCopy:
    """A plain copy of one version of a table.

    Attributes:
        location: Where the copy is.
        source: Location of the table that it is a copy of.
        version: Number of the version.
        table_id: The table's id.
        timestamp: When the version was committed, ISO 8601; None if that is unknown.
        configuration: The table's properties at that version.
        made: When the copy was committed, in milliseconds since 1970.
    """

    location: str
    source: str
    version: int
    table_id: str
    timestamp: str | None
    configuration: Mapping[str, str]
    made: int

    def open(self, storage_options: Mapping[str, str] | None = None) -> Snapshot:
        """Opens the copy as what it is a copy of: location and version are the original's, files are the copy's."""
        own = open_snapshot(self.location, 0, storage_options)
        files = replace(own.files, paths=tuple(locate(own.location, path) for path in own.files.paths))
        return replace(
            own,
            table=Table.of(self.source, self.version),
            files=files,
            configuration=dict(self.configuration),
            copy=self.location,
        )

    def size_bytes(self, storage_options: Mapping[str, str] | None = None) -> int:
        """Bytes of the copy's data files."""
        return int(open_snapshot(self.location, 0, storage_options).files.sizes.sum())


@named_options
def materialize(
    spark: SparkSession,
    location: str | Path,
    version: int | str | datetime | None,
    folder: str | Path,
    *,
    max_bytes: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> TableCopy:
    """Makes a plain copy of a version, or finds the one that is there.

    Args:
        spark: A session with Delta.
        location: Path or URI of the table.
        version: A number, a time, a pin's name, or None for the latest.
        folder: Where copies are kept; `DeltaFeed(..., materialize=folder)` reads them.
        max_bytes: What all copies in the folder may hold together, this one included; None is no limit.
        storage_options: Access to an object store.

    Raises:
        CopyError: If the copy would pass the limit or the disk's room, or is not the version's rows.
        NotADeltaTableError: If there is no table at `location`.
        VersionNotFoundError: If the table has no such version.
    """
    identity = identify(location, version, storage_options)
    found = find_copy(identity, folder, storage_options)
    return found or make_copy(spark, identity, folder, storage_options, max_bytes=max_bytes)


def find_copy(
    identity: VersionIdentity, folder: str | Path, storage_options: Mapping[str, str] | None = None
) -> TableCopy | None:
    """Finds the copy of a version: of several, which writers at the same time may have made, the first committed."""
    of_table = _join(absolute_path(folder), identity.table_id)
    made = [
        copy
        for name in names_in(of_table, storage_options)
        if name.startswith(f"{identity.version}-")
        and (copy := _copy_at(_join(of_table, name), storage_options)) is not None
    ]
    return min(made, key=lambda copy: (copy.made, copy.location), default=None)


def copies(folder: str | Path, storage_options: Mapping[str, str] | None = None) -> list[TableCopy]:
    """Lists the copies in a folder, the oldest first."""
    place = absolute_path(folder)
    found = [
        copy
        for table in sorted(names_in(place, storage_options))
        for name in sorted(names_in(_join(place, table), storage_options))
        if (copy := _copy_at(_join(place, table, name), storage_options)) is not None
    ]
    return sorted(found, key=lambda copy: copy.made)


def remove_copy(copy: TableCopy, storage_options: Mapping[str, str] | None = None) -> None:
    """Deletes a copy. A feed that reads it fails with an error that names its files."""
    # The commit goes first: what is left of a removal that was cut short is no copy.
    _remove(_join(copy.location, _COMMIT), storage_options)
    _remove(copy.location, storage_options)


def make_copy(
    spark: SparkSession,
    identity: VersionIdentity,
    folder: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    max_bytes: int | None = None,
) -> TableCopy:
    """Writes a copy, checks its number of rows, and gives the one that others will find too.

    Raises:
        CopyError: If it would pass the limit or the disk's room, or lacks rows.
    """
    place = absolute_path(folder)
    _require_room(identity, place, storage_options, max_bytes)
    of_table = _join(place, identity.table_id)
    _remove_abandoned(of_table, storage_options)
    location = _join(of_table, f"{identity.version}-{uuid.uuid4().hex[:12]}")
    logger.info("copying %s@%d to %s", identity.location, identity.version, location)
    try:
        rows = _write(spark, identity, location)
        stored = open_snapshot(location, 0, storage_options).rows
        if stored != rows:
            raise CopyError(f"{location} holds {stored} rows, {identity.location}@{identity.version} has {rows}")
    except BaseException:
        _remove(location, storage_options)
        raise
    chosen = find_copy(identity, folder, storage_options)
    if chosen is None:
        raise CopyError(f"{location} was removed while it was made; make the copy again")
    if chosen.location != location:
        _remove(location, storage_options)
    return chosen


def active_session() -> SparkSession | None:
    """Finds the Spark session that this process has, none of Spark Connect; pyspark is not imported for it."""
    import sys

    sql = sys.modules.get("pyspark.sql")
    if sql is None:
        return None
    session: SparkSession | None = sql.SparkSession.getActiveSession() or sql.SparkSession._instantiatedSession
    if session is None or is_connect(session):
        return None
    return session if is_running(session) else None


def _write(spark: SparkSession, identity: VersionIdentity, location: str) -> int:
    """Writes the version's rows as one commit; gives their number as Spark counts them in the original."""
    from ...etl.spark.catalog import naming_driver
    from ...etl.spark.failures import failures_named
    from ...etl.spark.writing_session import writing_session
    from ...spark.port import as_active_session

    session = writing_session(spark)
    # Delta looks for the session of the thread, and a thread of the user's own has none.
    with as_active_session(session):
        with naming_driver(identity.location):
            frame = session.read.format("delta").option("versionAsOf", identity.version).load(identity.location)
            rows = frame.count()
        note = {
            "lakelens": _MARK,
            "source": identity.location,
            "version": identity.version,
            "table_id": identity.table_id,
            "timestamp": None if identity.timestamp is None else identity.timestamp.isoformat(),
            "configuration": dict(identity.configuration),
        }
        writer = (
            frame.write.format("delta").mode("errorifexists").partitionBy(*identity.partition_columns).options(**_PLAIN)
        )
        with failures_named(identity.location), naming_driver(location):
            writer.option("userMetadata", json.dumps(note)).save(location)
    return int(rows)


def _require_room(
    identity: VersionIdentity,
    folder: str,
    storage_options: Mapping[str, str] | None,
    max_bytes: int | None,
) -> None:
    needed = identity.stored_bytes or 0
    if max_bytes is not None:
        kept = copies(folder, storage_options)
        held = sum(copy.size_bytes(storage_options) for copy in kept)
        if held + needed > max_bytes:
            listed = ", ".join(f"{copy.source}@{copy.version}" for copy in kept) or "none"
            raise CopyError(
                f"a copy of {identity.location}@{identity.version} takes about {needed} bytes; with the {held} "
                f"bytes of the copies in {folder} ({listed}) that is more than max_bytes={max_bytes}. Remove copies "
                "(lakelens.training.feed.copies.remove_copy), or raise max_bytes"
            )
    path = local_form(folder)
    if path is None:
        return
    Path(path).mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path).free
    if needed > free:
        raise CopyError(
            f"a copy of {identity.location}@{identity.version} takes about {needed} bytes, the disk of {folder} has "
            f"{free} left; name another folder, or remove copies (lakelens.training.feed.copies.remove_copy)"
        )


def _copy_at(location: str, storage_options: Mapping[str, str] | None) -> TableCopy | None:
    """Reads what a copy's commit says; None for what is no copy, or not whole yet."""
    try:
        commit = read_bytes(_join(location, _COMMIT), storage_options)
    except (FileNotFoundError, NotADirectoryError):
        return None
    for line in commit.splitlines():
        if b'"commitInfo"' in line[:20]:
            said = json.loads(line)["commitInfo"]
            note = _note_of(said.get("userMetadata"))
            if note.pop("lakelens", None) == _MARK:
                return TableCopy(location=location, made=int(said["timestamp"]), **note)
    return None


def _note_of(text: str | None) -> dict[str, Any]:
    try:
        note = json.loads(text or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def _remove_abandoned(of_table: str, storage_options: Mapping[str, str] | None) -> None:
    """Removes what writers left that were killed; only on disks, whose folders tell their age."""
    path = local_form(of_table)
    if path is None or not Path(path).is_dir():
        return
    for folder in Path(path).iterdir():
        if not (folder / _COMMIT).exists() and time.time() - folder.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(folder, ignore_errors=True)


def _remove(location: str, storage_options: Mapping[str, str] | None) -> None:
    path = local_form(location)
    if path is None:
        system, path = file_system(location, storage_options)
        with reaching(location):
            if system.exists(path):
                system.rm(path, recursive=True)
    elif Path(path).is_dir():
        shutil.rmtree(path)
    else:
        Path(path).unlink(missing_ok=True)


def _join(folder: str, *names: str) -> str:
    return "/".join((folder.rstrip("/"), *names))
