"""One version of any Delta table, read from its log without a JVM: its files, their rows, and which rows are deleted.

delta-rs replays the log. What readers must know of a version (deleted rows, the names of columns in the files) is part
of its snapshot; features that are newer than this module are refused by name.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import UnsupportedTableFeatureError, VersionUnreadableError
from ..locations import has_scheme
from .opening import open_table, open_whole, times_of, unsupported

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ..table import Table

# Reader features that change nothing about which rows the files of a version hold, or that this module applies.
_READER_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
PHYSICAL_NAME = "delta.columnMapping.physicalName"
ROWS_UNKNOWN = -1
# No path holds this character.
_BETWEEN_PATHS = "\0"


@dataclass(frozen=True)
class PartitionColumn:
    """The values of one partition column, one per file."""

    values: tuple[str | None, ...]  # The distinct values as Delta's log writes them; None is null
    codes: npt.NDArray[np.int32]  # int32 [files], index into `values` for each file

    def at(self, file: int) -> str | None:
        """Returns the value of one file."""
        return self.values[int(self.codes[file])]

    def take(self, files: npt.NDArray[np.int64]) -> PartitionColumn:
        """Keeps the given files."""
        return PartitionColumn(self.values, self.codes[files])


@dataclass(frozen=True)
class DataFiles:
    """The active data files of a version, in the log's order; one entry per file in each attribute."""

    paths: tuple[str, ...]  # Path relative to the table's location, or absolute (shallow clones); not URL-encoded
    sizes: npt.NDArray[np.int64]  # int64 [files], bytes
    rows: npt.NDArray[np.int64]  # int64 [files], rows without the deleted ones; -1 where the log has no statistics
    partitions: Mapping[str, PartitionColumn] = field(default_factory=dict)  # The partition columns by name
    # int64 [deleted rows], sorted row numbers within the file, for each file that has deleted rows, by path
    deleted: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)

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

    @property
    def all_rows(self) -> int | None:
        """Rows of all files, or None when the log lacks the statistics of a file."""
        return None if bool((self.rows == ROWS_UNKNOWN).any()) else int(self.rows.sum())

    def partition_values(self, file: int) -> dict[str, str | None]:
        """Returns the values of the partition columns that all rows of a file have, as the log writes them."""
        return {name: column.at(file) for name, column in self.partitions.items()}

    def deleted_rows(self, file: int) -> npt.NDArray[np.int64]:
        """Returns int64 [deleted rows]: the sorted numbers of a file's rows that deletion vectors have deleted."""
        return self.deleted_in(self.paths[file])

    def deleted_in(self, path: str) -> npt.NDArray[np.int64]:
        """Returns the same by the file's path."""
        return self.deleted.get(path, _NO_ROWS)

    def kept(self, file: int, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Returns bool [count]: which of the stored rows `first` .. `first + count - 1` of a file are not deleted."""
        mask = np.ones(count, dtype=np.bool_)
        deleted = self.deleted_rows(file)
        mask[deleted[np.searchsorted(deleted, first) : np.searchsorted(deleted, first + count)] - first] = False
        return mask

    def take(self, files: npt.NDArray[np.int64]) -> DataFiles:
        """Keeps the given files, in the given order."""
        paths = tuple(self.paths[i] for i in files)
        return DataFiles(
            paths,
            self.sizes[files],
            self.rows[files],
            {name: column.take(files) for name, column in self.partitions.items()},
            {path: self.deleted[path] for path in paths if path in self.deleted},
        )


_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Snapshot:
    """One version of a Delta table."""

    table: Table  # The table, whose version is the number of this version
    files: DataFiles  # The active data files
    # Delta type of each column, partition columns too: a name such as `integer`, or JSON of a nested type
    schema: Mapping[str, str]
    partition_columns: tuple[str, ...]  # Names of the partition columns
    configuration: Mapping[str, str]  # The table's properties
    table_id: str  # The table's own id, which a table that is created in its place does not share
    # Names of columns in the data files, where column mapping gives them others than the table
    stored_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def location(self) -> str:
        """The table's absolute path or URI."""
        return self.table.path

    @property
    def version(self) -> int:
        """Number of the version."""
        assert isinstance(self.table.version, int)  # noqa: S101  `open_snapshot` puts it there
        return self.table.version

    @cached_property
    def timestamp(self) -> datetime | None:
        """When the version was committed, read on first use; None if the log lacks it."""
        return times_of(self.table).get(self.version)

    @property
    def rows(self) -> int | None:
        """Rows of the version, or None when the log lacks the statistics of a file."""
        return self.files.all_rows

    def file_location(self, file: int) -> str:
        """Returns the absolute path or URI of a data file."""
        return self.table.file(self.files.paths[file])

    def require_plain(self) -> None:
        """Checks that the Parquet files alone show the version's rows, for readers that apply nothing else."""
        if self.files.deleted:
            raise UnsupportedTableFeatureError(unsupported(self.location, self.version, "deletion vectors"))
        if self.is_mapped:
            mode = self.configuration.get("delta.columnMapping.mode", "none")
            raise UnsupportedTableFeatureError(
                unsupported(self.location, self.version, f"column mapping (mode {mode})")
            )

    @property
    def is_mapped(self) -> bool:
        """Whether a column, or a field of a nested one, has another name in the data files."""
        return bool(self.stored_names) or any(PHYSICAL_NAME in kind for kind in self.schema.values())


def open_snapshot(table: Table) -> Snapshot:
    """Resolves the version of a table to its active files."""
    opened = open_whole(table)
    _refuse_unknown_features(table, opened)
    metadata, fields = opened.metadata(), json.loads(opened.schema().to_json())["fields"]
    stored = {field["name"]: field["metadata"].get(PHYSICAL_NAME, field["name"]) for field in fields}
    types = {field["name"]: field["type"] for field in fields}
    return Snapshot(
        table=table.at(opened.version()),
        files=data_files_of(opened, table),
        schema={name: kind if isinstance(kind, str) else json.dumps(kind) for name, kind in types.items()},
        partition_columns=tuple(metadata.partition_columns),
        configuration=dict(metadata.configuration),
        table_id=str(metadata.id),
        stored_names={name: own for name, own in stored.items() if own != name},
    )


def check_version(table: Table) -> None:
    """Checks that a table has a version, as `open_snapshot` does; names of the catalog pass."""
    if not table.is_name:
        with suppress(UnsupportedTableFeatureError):
            open_table(table)


def _refuse_unknown_features(table: Table, opened: DeltaTable) -> None:
    protocol = opened.protocol()
    unknown = sorted(set(protocol.reader_features or ()) - _READER_FEATURES)
    what = f"the table feature {unknown[0]}" if unknown else f"Delta reader version {protocol.min_reader_version}"
    if unknown or protocol.min_reader_version > 3:
        raise UnsupportedTableFeatureError(unsupported(table.path, opened.version(), what))


def data_files_of(opened: DeltaTable, table: Table) -> DataFiles:
    """Reads the active data files of the version at which a table is open."""
    actions = opened.get_add_actions(flatten=True)
    names = set(actions.schema.names)
    paths = tuple(unquote(path) for path in actions.column("path").to_pylist())
    if "num_records" in names:
        counted = actions.column("num_records").to_pylist()
        rows = np.array([ROWS_UNKNOWN if n is None else n for n in counted], dtype=np.int64)
    else:
        rows = np.full(len(paths), ROWS_UNKNOWN, dtype=np.int64)
    partitions = {}
    for name in opened.metadata().partition_columns:
        values = (
            actions.column(f"partition.{name}").to_pylist() if f"partition.{name}" in names else [None] * len(paths)
        )
        partitions[name] = _encode([_as_text(value) for value in values])
    deleted = _deleted_rows(opened, table, paths)
    for i, path in enumerate(paths):
        if path in deleted and rows[i] != ROWS_UNKNOWN:
            rows[i] -= len(deleted[path])
    sizes = np.array(actions.column("size_bytes").to_pylist(), dtype=np.int64)
    return DataFiles(paths, sizes, rows, partitions, deleted)


def _deleted_rows(opened: DeltaTable, table: Table, paths: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
    """Reads the deletion vectors of a version: the numbers of the deleted rows, by the path of their file."""
    from deltalake.exceptions import DeltaError

    if "deletionVectors" not in (opened.protocol().reader_features or ()):
        return {}
    deleted: dict[str, npt.NDArray[np.int64]] = {}
    root = opened.table_uri.rstrip("/")
    by_uri = {_without_escapes(path if has_scheme(path) else f"{root}/{path}"): path for path in paths}
    try:
        for batch in opened.deletion_vectors():
            kept = pa.array(batch.column("selection_vector"))
            for i, file in enumerate(batch.column("filepath").to_pylist()):
                mask = kept[i].values.to_numpy(zero_copy_only=False)
                deleted[by_uri[_without_escapes(file)]] = np.flatnonzero(~mask)
    except (DeltaError, OSError, KeyError) as error:
        raise VersionUnreadableError(
            f"{table.path}@{opened.version()}: a deletion vector cannot be read: {error}. It was removed by hand or by "
            "a VACUUM, or the disk or store was away; restore it, or read another version"
        ) from error
    return {path: rows for path, rows in deleted.items() if len(rows)}


def _without_escapes(uri: str) -> str:
    # The log escapes a path as a URL, and so does delta-rs where it makes the URI of a file.
    return unquote(unquote(uri))


def _as_text(value: Any) -> str | None:
    """Writes a partition value, which delta-rs has parsed, as text again."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return None if value is None else str(value)


def _encode(values: list[str | None]) -> PartitionColumn:
    codes: dict[str | None, int] = {}
    column = np.array([codes.setdefault(value, len(codes)) for value in values], dtype=np.int32)
    return PartitionColumn(tuple(codes), column)
