"""The Parquet files of a version: reading their rows as the table shows them, and finding missing ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import VersionFilesMissingError
from ..results import some_of
from ..stores.data_files import by_folder, local_form, names_in, open_parquet_file, remove_file
from ..stores.watched import STALL_TIMEOUT_S, watched_each
from .delta_types import arrow_type, conform, parse_partition_value, spelled_in_file
from .opening import open_table, ranges_of
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..table import Table

_NAMED = 3
# Opening a version costs milliseconds.
_SEARCHED_VERSIONS = 100
_BATCH_ROWS = 65_536


@contextmanager
def open_stored(snapshot: Snapshot, file: int) -> Iterator[pq.ParquetFile]:
    """Opens a data file as it is stored: with deleted rows, and under the stored names of its columns."""
    try:
        location, size = snapshot.file_location(file), int(snapshot.files.sizes[file])
        with open_parquet_file(location, snapshot.table.storage_options, size) as parquet:
            yield parquet
    except FileNotFoundError as error:
        raise files_missing(snapshot, find_missing(snapshot)) from error


def read_batches(
    snapshot: Snapshot, file: int, columns: Sequence[str], *, batch_rows: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Reads columns of a data file as the table shows them: under its names, without deleted rows."""
    with open_stored(snapshot, file) as parquet:
        yield from batches_of(snapshot, file, parquet, columns, batch_rows=batch_rows)


def batches_of(
    snapshot: Snapshot,
    file: int,
    parquet: pq.ParquetFile,
    columns: Sequence[str],
    row_groups: Sequence[int] | None = None,
    batch_rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Reads as `read_batches` does, from a data file that is open."""
    stored = list(stored_columns(snapshot, file, columns, parquet.metadata).values())
    counts = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
    for group in range(len(counts)) if row_groups is None else row_groups:
        first = sum(counts[:group])
        if not stored:  # pyarrow does not count rows without a column
            kept = int(snapshot.files.kept(file, first, counts[group]).sum())
            yield from complete(snapshot, file, pa.table({}), columns, kept).to_batches()
            continue
        for batch in parquet.iter_batches(batch_rows, row_groups=[group], columns=stored):
            mask = snapshot.files.kept(file, first, batch.num_rows)
            first += batch.num_rows
            shown = complete(snapshot, file, pa.Table.from_batches([batch]), columns, batch.num_rows)
            yield from (shown if mask.all() else shown.filter(pa.array(mask))).to_batches()


def stored_columns(snapshot: Snapshot, file: int, columns: Iterable[str], footer: pq.FileMetaData) -> dict[str, str]:
    """Finds those of some columns that a file holds itself, with their names in it."""
    of_rows = [name for name in columns if name in snapshot.schema and name not in snapshot.partition_columns]
    return _spelled(snapshot, file, of_rows, footer.schema.to_arrow_schema().names)


def _spelled(snapshot: Snapshot, file: int, columns: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    own = {name: snapshot.stored_names.get(name, name) for name in columns}
    found = spelled_in_file(own.values(), names, snapshot.file_location(file))
    return {name: found[stored] for name, stored in own.items() if stored in found}


def complete(snapshot: Snapshot, file: int, read: pa.Table, columns: Sequence[str], rows: int) -> pa.Table:
    """Adds to what a file holds the partition columns, from the log, and the columns that it lacks, as nulls."""
    arrays = []
    stored = _spelled(snapshot, file, columns, read.column_names)
    for name in columns:
        if name in stored:
            arrays.append(
                conform(_in_utc(read.column(stored[name])), snapshot.schema[name], snapshot.file_location(file))
            )
        else:
            arrays.append(pa.chunked_array([_constant(snapshot, file, name, rows)]))
    return pa.table(arrays, names=list(columns))


def _in_utc(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Gives times in UTC, as Delta means them, if their writer has marked them with another zone."""
    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.tz in (None, "UTC"):
        return column
    return column.cast(pa.timestamp(kind.unit, "UTC"))


def _constant(snapshot: Snapshot, file: int, name: str, rows: int) -> pa.Array:
    declared = snapshot.schema.get(name, "void")
    kind = arrow_type(declared)
    text = snapshot.files.partitions[name].at(file) if name in snapshot.partition_columns else None
    if text is None:
        return pa.nulls(rows, kind)
    return pa.repeat(pa.scalar(parse_partition_value(text, declared), type=kind), rows)


def read_columns(snapshot: Snapshot, file: int, columns: pa.Schema) -> pa.Table:
    """Reads columns of one data file as `read_batches` does, in given types."""
    tables = [columns.empty_table()]
    for batch in read_batches(snapshot, file, columns.names):
        arrays = [_cast(column, kind) for column, kind in zip(batch.columns, columns.types, strict=True)]
        tables.append(pa.Table.from_arrays(arrays, schema=columns))
    return pa.concat_tables(tables)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(array.type) and pa.types.is_int64(kind):
        array = array.cast(pa.timestamp("us", tz="UTC"), safe=False)
    return array.cast(kind)


def find_missing(snapshot: Snapshot, timeout_s: float = STALL_TIMEOUT_S) -> list[str]:
    """Lists the missing files of a version, as its log names them; raises as `require_files` if the store stalls."""
    located = {snapshot.table.file(path): path for path in snapshot.files.paths}
    folders = by_folder(located)
    listed = watched_each(
        lambda folder: names_in(folder, snapshot.table.storage_options),
        list(folders),
        lambda folder: f"{snapshot.location}@{snapshot.version}: the list of the files in {folder}/",
        timeout_s,
    )
    missing = []
    for (folder, names), present in zip(folders.items(), listed, strict=True):
        missing += [located[f"{folder}/{name}"] for name in names if name not in present]
    return missing


def require_files(snapshot: Snapshot, timeout_s: float = STALL_TIMEOUT_S) -> None:
    """Checks that every file of a version is there."""
    missing = find_missing(snapshot, timeout_s)
    if missing:
        raise files_missing(snapshot, missing)


def files_missing(snapshot: Snapshot, missing: Sequence[str]) -> VersionFilesMissingError:
    """Makes the error about missing files."""
    named = some_of(missing, _NAMED) or "one was taken while it was read"
    whole = ranges_of(_whole_versions(snapshot.table)) or "none"
    return VersionFilesMissingError(
        f"{snapshot.location}@{snapshot.version}: {len(missing)} of its {len(snapshot.files)} data file(s) are gone: "
        f"{named}. They were removed by VACUUM or by hand; pin a version to keep its files. Versions with all their "
        f"files: {whole}"
    )


def _whole_versions(table: Table) -> list[int]:
    """Finds those of the last hundred versions whose files are all there, by listing each folder once."""
    from deltalake.exceptions import DeltaError

    opened = open_table(table.at(None))
    latest, listed, whole = opened.version(), dict[str, set[str]](), []
    for version in range(latest, max(-1, latest - _SEARCHED_VERSIONS), -1):
        try:
            opened.load_as_version(version)
        except DeltaError:  # the log cannot rebuild it any more
            continue
        paths = opened.get_add_actions().column("path").to_pylist()
        folders = by_folder(table.file(unquote(path)) for path in paths)
        for folder in folders.keys() - listed.keys():
            listed[folder] = names_in(folder, table.storage_options)
        if all(listed[folder].issuperset(names) for folder, names in folders.items()):
            whole.append(version)
    return sorted(whole)


def remove_files(table: Table, locations: Iterable[str], *, before_each: Callable[[], None]) -> None:
    """Removes files of a table by their absolute paths or URIs; files that no longer exist are skipped."""
    for location in locations:
        before_each()
        with contextlib.suppress(FileNotFoundError):
            remove_file(location, table.storage_options)
        local = local_form(location)
        if local is not None:
            Path(local).with_name(f".{Path(local).name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of it
