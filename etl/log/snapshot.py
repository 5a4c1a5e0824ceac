"""One version of any Delta table, read from its log without a JVM: which files it has, with how many rows.

delta-rs replays the log. What a plain Parquet reader would get wrong (deletion vectors, renamed columns, features that
are newer than this module) is refused by name, never read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from ...errors import UnsupportedTableFeatureError
from ...locations import absolute, is_table_name
from ...locations import locate as locate
from .commit_times import commit_time
from .opening import as_version, location_of, log_of, open_log, unsupported

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Reader features that change nothing about which rows the Parquet files of a version hold. `deletionVectors` and
# `columnMapping` are looked at one by one: a table may have the feature without using it.
_HARMLESS_READER_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
ROWS_UNKNOWN = -1
# No path holds this character.
_BETWEEN_PATHS = "\0"


@dataclass(frozen=True)
class PartitionColumn:
    """The values of one partition column, one per file.

    Attributes:
        values: The distinct values as Delta's log writes them; None is null.
        codes: int32 [files], index into `values` for each file.
    """

    values: tuple[str | None, ...]
    codes: npt.NDArray[np.int32]

    def at(self, file: int) -> str | None:
        """Returns the value of one file."""
        return self.values[int(self.codes[file])]

    def take(self, files: npt.NDArray[np.int64]) -> PartitionColumn:
        """Keeps the given files."""
        return PartitionColumn(self.values, self.codes[files])


@dataclass(frozen=True)
class DataFiles:
    """The active data files of a version, in the log's order; one entry per file in each attribute.

    Attributes:
        paths: Path relative to the table's location, or absolute (shallow clones); not URL-encoded.
        sizes: int64 [files], bytes.
        rows: int64 [files], rows; -1 where the log has no statistics.
        partitions: The partition columns by name.
    """

    paths: tuple[str, ...]
    sizes: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    partitions: Mapping[str, PartitionColumn] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def __getstate__(self) -> dict[str, Any]:
        # A plan goes to every rank: 100,000 paths are 7 MB as they are, 2.4 MB packed.
        packed = zlib.compress(_BETWEEN_PATHS.join(self.paths).encode("utf-8", "surrogateescape"), 1)
        return {**self.__dict__, "paths": (len(self.paths), packed)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        count, packed = state["paths"]
        text = zlib.decompress(packed).decode("utf-8", "surrogateescape")
        self.__dict__.update(state, paths=tuple(text.split(_BETWEEN_PATHS)) if count else ())

    def partition_values(self, file: int) -> dict[str, str | None]:
        """Returns the values of the partition columns that all rows of a file have, as the log writes them."""
        return {name: column.at(file) for name, column in self.partitions.items()}

    def take(self, files: npt.NDArray[np.int64]) -> DataFiles:
        """Keeps the given files, in the given order."""
        return DataFiles(
            tuple(self.paths[i] for i in files),
            self.sizes[files],
            self.rows[files],
            {name: column.take(files) for name, column in self.partitions.items()},
        )


@dataclass(frozen=True)
class Snapshot:
    """One version of a Delta table.

    Attributes:
        location: The table's absolute path or URI.
        version: Number of the version.
        timestamp: When the version was committed; None if the log no longer says.
        files: The active data files.
        schema: Delta type of each column, partition columns too: a name such as `integer`, or JSON of a nested type.
        partition_columns: Names of the partition columns.
        configuration: The table's properties.
        copy: Location of the plain copy whose files are read in place of the version's own; None without one.
        table_id: The table's own id, which a table that is made anew in its place does not share.
        stored_names: Names of columns in the data files, where column mapping gives them others than the table.
    """

    location: str
    version: int
    timestamp: datetime | None
    files: DataFiles
    schema: Mapping[str, str]
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]
    copy: str | None = None
    table_id: str = ""
    stored_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int | None:
        """Rows of the version, or None when the log lacks the statistics of a file."""
        return None if bool((self.files.rows == ROWS_UNKNOWN).any()) else int(self.files.rows.sum())

    def file_location(self, file: int) -> str:
        """Returns the absolute path or URI of a data file."""
        return locate(self.location, self.files.paths[file])


@dataclass(frozen=True)
class VersionIdentity:
    """What a version is, whatever its files hold.

    Attributes:
        location: The table's absolute path or URI.
        version: Number of the version.
        table_id: The table's own id, which a table that is made anew in its place does not share.
        timestamp: When the version was committed; None if the log no longer says.
        configuration: The table's properties.
        partition_columns: Names of the partition columns.
        stored_bytes: Bytes of its data files; None where that was not asked for.
    """

    location: str
    version: int
    table_id: str
    timestamp: datetime | None
    configuration: Mapping[str, str]
    partition_columns: tuple[str, ...]
    stored_bytes: int | None = None


def open_snapshot(
    location: str | Path,
    version: int | str | datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    mapped: bool = False,
) -> Snapshot:
    """Resolves a version of a Delta table to its active files.

    Args:
        location: Path or URI of the table.
        version: A number; "latest" or None; a time (datetime or ISO 8601 text), which means the last version committed
            at or before it; or the name of a pin.
        storage_options: Access to an object store, under delta-rs' names; a value `env:NAME` is read from the
            environment variable NAME wherever it is needed.
        mapped: Whether a version with column mapping is opened too, for callers that read columns by `stored_names`.

    Raises:
        NotADeltaTableError: If there is no Delta table at `location`.
        StoreError: If the object store cannot be reached or refuses.
        VersionNotFoundError: If the table has no such version; the message says which it has.
        VersionUnreadableError: If the log has the version's entries, and they cannot be read now.
        UnsupportedTableFeatureError: If reading its Parquet files would give wrong rows; names the feature.
    """
    with _opened(location, version, storage_options) as (identity, table):
        _refuse_unreadable(identity.location, table, mapped=mapped)
        return Snapshot(
            location=identity.location,
            version=identity.version,
            timestamp=identity.timestamp,
            files=_files_of(table),
            schema=_schema_of(table),
            partition_columns=identity.partition_columns,
            configuration=identity.configuration,
            table_id=identity.table_id,
            stored_names=_stored_names_of(table),
        )


def identify(
    location: str | Path,
    version: int | str | datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> VersionIdentity:
    """Resolves a version of a Delta table without asking whether its files can be read.

    Arguments and errors are those of `open_snapshot`; a version is refused only if delta-rs cannot open it at all.
    """
    with _opened(location, version, storage_options) as (identity, table):
        sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist()
        return replace(identity, stored_bytes=sum(sizes))


def check_version(
    location: str | Path,
    version: int | str | datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Checks that there is a table and a version, where that can be known without Spark: not of names of the catalog.

    Arguments and errors are those of `open_snapshot`.
    """
    if not is_table_name(absolute(location)):
        with suppress(UnsupportedTableFeatureError):  # Spark reads what delta-rs does not
            identify(location, version, storage_options)


@contextmanager
def _opened(
    location: str | Path, version: int | str | datetime | None, storage_options: Mapping[str, str] | None
) -> Iterator[tuple[VersionIdentity, DeltaTable]]:
    place = location_of(location)
    wanted = as_version(place, version, storage_options)
    with log_of(place) as log:
        table = open_log(place, log, wanted, storage_options)
        metadata = table.metadata()
        yield (
            VersionIdentity(
                location=place,
                version=table.version(),
                table_id=str(metadata.id),
                timestamp=commit_time(table.version(), log, storage_options),
                configuration=dict(metadata.configuration),
                partition_columns=tuple(metadata.partition_columns),
            ),
            table,
        )


def _refuse_unreadable(place: str, table: DeltaTable, *, mapped: bool) -> None:
    protocol = table.protocol()
    version = table.version()
    features = set(protocol.reader_features or ())
    unknown = features - _HARMLESS_READER_FEATURES - {"deletionVectors", "columnMapping"}
    if unknown:
        raise UnsupportedTableFeatureError(unsupported(place, version, f"the table feature {sorted(unknown)[0]}"))
    if protocol.min_reader_version > 3:
        raise UnsupportedTableFeatureError(
            unsupported(place, version, f"Delta reader version {protocol.min_reader_version}")
        )
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none" and not mapped:
        raise UnsupportedTableFeatureError(unsupported(place, version, f"column mapping (mode {mode})"))
    if "deletionVectors" in features and has_deletion_vectors(table):
        raise UnsupportedTableFeatureError(unsupported(place, version, "deletion vectors"))


def has_deletion_vectors(table: DeltaTable) -> bool:
    """Returns whether deletion vectors mark rows of an open table; also where they cannot be read."""
    from deltalake.exceptions import DeltaError

    try:
        return any(batch.num_rows for batch in table.deletion_vectors())
    except (DeltaError, OSError):
        return True  # a vector that cannot be read is there all the same


def _files_of(table: DeltaTable) -> DataFiles:
    actions = table.get_add_actions(flatten=True)
    names = set(actions.schema.names)
    paths = tuple(unquote(path) for path in actions.column("path").to_pylist())
    if "num_records" in names:
        counted = actions.column("num_records").to_pylist()
        rows = np.array([ROWS_UNKNOWN if n is None else n for n in counted], dtype=np.int64)
    else:
        rows = np.full(len(paths), ROWS_UNKNOWN, dtype=np.int64)
    partitions = {}
    for name in table.metadata().partition_columns:
        values = (
            actions.column(f"partition.{name}").to_pylist() if f"partition.{name}" in names else [None] * len(paths)
        )
        partitions[name] = _encode([_as_text(value) for value in values])
    return DataFiles(paths, np.array(actions.column("size_bytes").to_pylist(), dtype=np.int64), rows, partitions)


def _as_text(value: Any) -> str | None:
    """Writes a partition value, which delta-rs has parsed, as text again."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return None if value is None else str(value)


def _encode(values: list[str | None]) -> PartitionColumn:
    codes: dict[str | None, int] = {}
    column = np.array([codes.setdefault(value, len(codes)) for value in values], dtype=np.int32)
    return PartitionColumn(tuple(codes), column)


def _schema_of(table: DeltaTable) -> dict[str, str]:
    fields = json.loads(table.schema().to_json())["fields"]
    return {entry["name"]: _type_name(entry["type"]) for entry in fields}


def _stored_names_of(table: DeltaTable) -> dict[str, str]:
    fields = json.loads(table.schema().to_json())["fields"]
    names = {entry["name"]: entry["metadata"].get(_PHYSICAL_NAME, entry["name"]) for entry in fields}
    return {name: stored for name, stored in names.items() if stored != name}


def _type_name(declared: Any) -> str:
    return declared if isinstance(declared, str) else json.dumps(declared)
