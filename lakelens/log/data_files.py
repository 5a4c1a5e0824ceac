"""The Parquet files of a version: reading their rows as the table shows them, and finding missing ones."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import VersionFilesMissingError
from ..stores.data_files import by_folder, local_form, names_in, remove_file
from ..stores.parquet import open_parquet_file
from .opening import open_table, ranges_of
from .snapshot import PHYSICAL_NAME, Snapshot

if TYPE_CHECKING:
    from ..table import Table

_NAMED = 3
# Opening a version costs milliseconds.
_SEARCHED_VERSIONS = 100
_BATCH_ROWS = 65_536


@contextmanager
def open_stored(snapshot: Snapshot, file: int) -> Iterator[pq.ParquetFile]:
    """Opens a data file as it is stored: with deleted rows, and under the stored names of its columns.

    Raises:
        VersionFilesMissingError: If the file is gone.
        DataFileError: If it is not a whole Parquet file.
    """
    try:
        location, size = snapshot.file_location(file), int(snapshot.files.sizes[file])
        with open_parquet_file(location, snapshot.table.storage_options, size) as parquet:
            yield parquet
    except FileNotFoundError as error:
        raise files_missing(snapshot, find_missing(snapshot)) from error


def read_batches(
    snapshot: Snapshot,
    file: int,
    columns: Sequence[str],
    *,
    row_groups: Sequence[int] | None = None,
    batch_rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Reads columns of a data file as the table shows them: under its names, without deleted rows.

    Args:
        snapshot: The version.
        file: Index of the file.
        columns: Names of columns; partition columns and those that the file lacks are left out.
        row_groups: Numbers of the row groups to read; None reads all.
        batch_rows: Most stored rows of a batch; a batch may be empty.

    Raises:
        VersionFilesMissingError: If the file is gone.
        DataFileError: If it is not a whole Parquet file.
    """
    with open_stored(snapshot, file) as parquet:
        yield from batches_of(snapshot, file, parquet, columns, row_groups, batch_rows)


def batches_of(
    snapshot: Snapshot,
    file: int,
    parquet: pq.ParquetFile,
    columns: Sequence[str],
    row_groups: Sequence[int] | None = None,
    batch_rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Reads as `read_batches` does, from a data file that is open."""
    stored = {name: snapshot.stored_names.get(name, name) for name in columns}
    stored_in = set(parquet.schema_arrow.names)
    present = [name for name in columns if name in snapshot.schema and stored[name] in stored_in]
    counts = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
    for group in range(len(counts)) if row_groups is None else row_groups:
        first = sum(counts[:group])
        if not present:  # pyarrow does not count rows without a column
            kept = int(snapshot.files.kept(file, first, counts[group]).sum())
            yield pa.RecordBatch.from_struct_array(pa.array([{}] * kept, pa.struct([])))
            continue
        for batch in parquet.iter_batches(batch_rows, row_groups=[group], columns=[stored[name] for name in present]):
            mask = snapshot.files.kept(file, first, batch.num_rows)
            first += batch.num_rows
            found = dict(zip(batch.schema.names, batch.columns, strict=True))
            arrays = [logical(found[stored[name]], snapshot.schema[name]) for name in present]
            shown = pa.RecordBatch.from_arrays(arrays, names=present)
            yield shown if mask.all() else shown.filter(pa.array(mask))


def logical(array: pa.Array, declared: str) -> pa.Array:
    """Gives the fields of a nested column the names that the table has for them, where column mapping changes them.

    Args:
        array: The column as it is stored.
        declared: Delta's type of it, as `Snapshot.schema` holds it.
    """
    return _renamed(array, json.loads(declared)) if PHYSICAL_NAME in declared else array


def _renamed(array: pa.Array, declared: Any) -> pa.Array:
    if not isinstance(declared, Mapping):
        return array
    mask = array.is_null()
    if declared["type"] == "struct":
        stored = {array.type.field(i).name: array.field(i) for i in range(array.type.num_fields)}
        names, parts = [], []
        for field in declared["fields"]:
            part = stored.get(field["metadata"].get(PHYSICAL_NAME, field["name"]))
            if part is not None:
                names.append(field["name"])
                parts.append(_renamed(part, field["type"]))
        return pa.StructArray.from_arrays(parts, names=names, mask=mask)
    if declared["type"] == "map":
        keys, items = _renamed(array.keys, declared["keyType"]), _renamed(array.items, declared["valueType"])
        return pa.MapArray.from_arrays(_offsets(array), keys, items)
    return pa.ListArray.from_arrays(_offsets(array), _renamed(array.values, declared["elementType"]))


def _offsets(array: pa.Array) -> pa.Array:
    """Returns the offsets of a list or map; null where the entry is null."""
    import pyarrow.compute as pc

    absent = pa.concat_arrays([array.is_null(), pa.array([False])])
    return pc.if_else(absent, pa.scalar(None, pa.int32()), array.offsets)


def read_columns(snapshot: Snapshot, file: int, columns: pa.Schema) -> pa.Table:
    """Reads columns of one data file; partition values come from the log, and columns that it lacks are null.

    Args:
        snapshot: The version.
        file: Index of the file.
        columns: Names and types; a time as int64 becomes microseconds since 1970.
    """
    partitions = snapshot.files.partition_values(file)
    tables = [columns.empty_table()]
    for batch in read_batches(snapshot, file, [name for name in columns.names if name not in partitions]):
        arrays = []
        for field in columns:
            if field.name in partitions:
                arrays.append(pa.repeat(pa.scalar(partitions[field.name], field.type), batch.num_rows))
            elif field.name not in batch.schema.names:
                arrays.append(pa.nulls(batch.num_rows, field.type))
            else:
                arrays.append(_cast(batch.column(field.name), field.type))
        tables.append(pa.Table.from_arrays(arrays, schema=columns))
    return pa.concat_tables(tables)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(array.type) and pa.types.is_int64(kind):
        array = array.cast(pa.timestamp("us", tz="UTC"), safe=False)
    return array.cast(kind)


def find_missing(snapshot: Snapshot) -> list[str]:
    """Lists the missing files of a version, as its log names them."""
    located = {snapshot.table.file(path): path for path in snapshot.files.paths}
    missing = []
    for folder, names in by_folder(located).items():
        present = names_in(folder, snapshot.table.storage_options)
        missing += [located[f"{folder}/{name}"] for name in names if name not in present]
    return missing


def require_files(snapshot: Snapshot) -> None:
    """Checks that every file of a version is there.

    Raises:
        VersionFilesMissingError: If one is gone; names the first ones and the versions that are whole.
    """
    missing = find_missing(snapshot)
    if missing:
        raise files_missing(snapshot, missing)


def files_missing(snapshot: Snapshot, missing: Sequence[str]) -> VersionFilesMissingError:
    """Makes the error about missing files."""
    named = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    whole = ranges_of(_whole_versions(snapshot.table)) or "none"
    return VersionFilesMissingError(
        f"{snapshot.location}@{snapshot.version}: {len(missing)} of its {len(snapshot.files)} data file(s) are gone: "
        f"{named or 'one was taken while it was read'}. They were removed by VACUUM or by hand; pin a version to keep "
        f"its files. Versions with all their files: {whole}"
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
    """Removes files of a table by their absolute paths or URIs; files that no longer exist are skipped.

    Args:
        table: The table.
        locations: The files.
        before_each: Called before each is removed; may raise.
    """
    for location in locations:
        before_each()
        with contextlib.suppress(FileNotFoundError):
            remove_file(location, table.storage_options)
        local = local_form(location)
        if local is not None:
            Path(local).with_name(f".{Path(local).name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of it
