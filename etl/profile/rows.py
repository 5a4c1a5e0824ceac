"""Reads one version of a table into pandas, without Spark: its small columns, and the images a row group at a time."""

from __future__ import annotations

import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import NotAnImageTableError
from ...log.data_files import batches_of, open_stored
from ...log.snapshot import Snapshot
from ..model import schema
from ..model.labels import NO_CLASS
from ..versions.classes import class_column

if TYPE_CHECKING:
    import pandas as pd

NO_SPLIT = "none"
_FIRST_SPLITS = ("train", "validation", "test")
_SMALL_COLUMNS = (schema.HEIGHT, schema.WIDTH, schema.FORMAT, schema.ANNOTATIONS, schema.CONTENT_HASH)
_BATCH_ROWS = 256
_HEXADECIMAL = re.compile(r"[0-9a-f]{16}")
# Spreads row numbers over 64 bits, each to a different one.
_ODD = np.uint64(0x9E3779B97F4A7C15)


def read_rows(snapshot: Snapshot) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Reads the small columns of every row, about 40 bytes for each image and each box.

    Returns:
        The images in the version's order: `split`, `class_name`, `format` (categories), `width` and `height` (pixels,
        NaN where not recorded), `source_bytes`, `content` (uint64, the start of the content hash), `boxes` (their
        number, NaN where the image was not annotated), `file` and `group` (where the row is stored).
        The boxes: `image` (position of its image), `class_name`, `width`, `height` (pixels of the stored image),
        `relative_width`, `relative_height`, `difficult`.

    Raises:
        NotAnImageTableError: If the table has no column `image`.
    """
    if schema.IMAGE not in snapshot.schema:
        there = ", ".join(snapshot.schema)
        raise NotAnImageTableError(f"{snapshot.location} has no column {schema.IMAGE!r} (its columns: {there})")
    class_name = class_column(snapshot.schema)
    wanted = [*_SMALL_COLUMNS, schema.SOURCE_LENGTH, schema.SPLIT, *([class_name] if class_name else [])]
    parts, first = [_tables_of(0, [], {}, class_name, 0)], 0  # their columns, even if the version has no file
    for file in range(len(snapshot.files)):
        groups, batches = [], list[pa.RecordBatch]()
        with open_stored(snapshot, file) as parquet:
            for group in range(parquet.num_row_groups):
                found = list(batches_of(snapshot, file, parquet, wanted, [group]))
                groups.append(sum(len(batch) for batch in found))
                batches += found
        read = pa.Table.from_batches(batches) if batches else pa.table({})
        columns = {name: read.column(name).combine_chunks() for name in read.column_names}
        for name, value in snapshot.files.partition_values(file).items():
            columns[name] = pa.array([value] * sum(groups), pa.string())
        parts.append(_tables_of(file, groups, columns, class_name, first))
        first += sum(groups)
    found_images, found_boxes = (
        pa.concat_tables(tables).unify_dictionaries().to_pandas() for tables in zip(*parts, strict=True)
    )
    splits = found_images["split"].cat.categories
    order = [name for name in _FIRST_SPLITS if name in splits] + sorted(set(splits) - set(_FIRST_SPLITS))
    found_images["split"] = found_images["split"].cat.set_categories(order)
    return found_images, found_boxes


def read_paths(snapshot: Snapshot, images: pd.DataFrame, rows: Sequence[int] | npt.NDArray[np.int64]) -> dict[int, str]:
    """Reads the sources of rows; leaves out rows without one."""
    found = for_each_row(snapshot, images, rows, [schema.PATH], lambda row: row.get(schema.PATH))
    return {row: str(path) for row, path in found if path}


def for_each_row(
    snapshot: Snapshot,
    images: pd.DataFrame,
    wanted: Sequence[int] | npt.NDArray[np.int64],
    columns: Sequence[str],
    work: Callable[[Mapping[str, Any]], Any],
) -> Iterator[tuple[int, Any]]:
    """Calls `work(row)` in a few threads, a row group each, and yields (position, result) in the version's order.

    Args:
        snapshot: The version.
        images: Its images, as `read_rows` gives them.
        wanted: Positions of rows.
        columns: Columns that a row has; those that a data file lacks are missing there.
        work: Called with each row.
    """
    is_wanted = np.zeros(len(images), bool)
    is_wanted[np.asarray(wanted, np.int64)] = True
    places = images[["file", "group"]].to_numpy()
    is_first = np.ones(len(images), bool)
    is_first[1:] = (places[1:] != places[:-1]).any(axis=1)
    groups = [
        (int(start), np.flatnonzero(is_wanted[start:end]))
        for start, end in itertools.pairwise([*np.flatnonzero(is_first), len(images)])
        if is_wanted[start:end].any()
    ]

    def read(start: int, offsets: npt.NDArray[np.int64]) -> list[tuple[int, Any]]:
        found, first = [], 0
        file, group = (int(place) for place in places[start])
        with open_stored(snapshot, file) as parquet:
            for batch in batches_of(snapshot, file, parquet, columns, [group], _BATCH_ROWS):
                for offset in offsets[(offsets >= first) & (offsets < first + len(batch))]:
                    (row,) = batch.slice(int(offset) - first, 1).to_pylist()
                    found.append((start + int(offset), work(row)))
                first += len(batch)
        return found

    workers = max(1, min(8, os.cpu_count() or 1))
    # Decoding silences warnings. Where several threads do so at the same time, none of them restores the filters, and
    # the process would never warn again.
    with warnings.catch_warnings(), ThreadPoolExecutor(workers, thread_name_prefix="lakelens-profile") as pool:
        for first in range(0, len(groups), 2 * workers):  # bounds the results that wait to be taken
            for found in pool.map(read, *zip(*groups[first : first + 2 * workers], strict=True)):
                yield from found


def _tables_of(
    file: int, groups: Sequence[int], columns: Mapping[str, pa.Array], class_name: str | None, first: int
) -> tuple[pa.Table, pa.Table]:
    """The images and boxes of a data file, whose first row has the position `first` in the version."""
    rows = sum(groups)
    width, height = (_floats(columns.get(name), rows) for name in (schema.WIDTH, schema.HEIGHT))
    counts, boxes = _boxes_of(columns.get(schema.ANNOTATIONS), rows)
    image = boxes.pop("image")
    across, down = boxes["xmax"] - boxes["xmin"], boxes["ymax"] - boxes["ymin"]
    images = {
        "split": _names(columns.get(schema.SPLIT), rows, NO_SPLIT),
        "class_name": _names(columns.get(class_name or ""), rows, NO_CLASS),
        "format": _names(columns.get(schema.FORMAT), rows, None),
        "width": width,
        "height": height,
        "source_bytes": _floats(columns.get(schema.SOURCE_LENGTH), rows),
        "content": _content_starts(columns.get(schema.CONTENT_HASH), first, rows),
        "boxes": counts,
        "file": np.full(rows, file, np.int32),
        "group": np.repeat(np.arange(len(groups), dtype=np.int32), np.array(groups, np.int64)),
    }
    in_boxes = {
        "image": image + first,
        "class_name": _names(boxes["label_name"], len(image), None),
        "width": across,
        "height": down,
        "relative_width": across / width[image],
        "relative_height": down / height[image],
        "difficult": boxes["difficult"],
    }
    return pa.table(images), pa.table(in_boxes)


def _boxes_of(annotations: pa.Array | None, rows: int) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
    """The number of boxes of each row, and the boxes; a box without a finite corner does not count."""
    if annotations is None or not _holds_boxes(annotations.type):
        empty = np.empty(0, np.float32)
        columns = dict.fromkeys(schema.BOX_CORNERS, empty) | {"label_name": None, "difficult": empty.astype(bool)}
        return np.full(rows, np.nan, np.float32), {**columns, "image": np.empty(0, np.int64)}
    lengths = np.asarray(annotations.value_lengths().fill_null(-1))
    flat = annotations.flatten()
    fields = dict(zip((field.name for field in flat.type), flat.flatten(), strict=True))
    corners = {name: _floats(fields[name], len(flat)) for name in schema.BOX_CORNERS}
    whole = np.isfinite(np.stack(list(corners.values()))).all(axis=0)
    image = np.repeat(np.arange(rows), np.maximum(lengths, 0))[whole]
    counts = np.where(lengths < 0, np.nan, np.bincount(image, minlength=rows)).astype(np.float32)
    names = fields[schema.LABEL_NAME].filter(pa.array(whole))
    difficult = np.asarray(fields["difficult"].fill_null(False))[whole]
    boxes = {name: values[whole] for name, values in corners.items()}
    return counts, {**boxes, "label_name": names, "difficult": difficult, "image": image}


def _holds_boxes(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    names = {field.name for field in kind.value_type}
    return names >= {*schema.BOX_CORNERS, schema.LABEL_NAME, "difficult"}


def _names(column: pa.Array | None, rows: int, default: str | None) -> pa.Array:
    """Reads a column as categories; the default stands for null, an empty text and a missing column."""
    texts = pa.nulls(rows, pa.string()) if column is None else column.cast(pa.string())
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    return (texts if default is None else texts.fill_null(default)).dictionary_encode()


def _floats(column: pa.Array | None, rows: int) -> npt.NDArray[np.float32]:
    if column is None:
        return np.full(rows, np.nan, np.float32)
    return np.asarray(column.cast(pa.float64()).fill_null(np.nan), dtype=np.float32)


def _content_starts(column: pa.Array | None, first: int, rows: int) -> npt.NDArray[np.uint64]:
    """The first 64 bits of each content hash; a row without one has its own content."""
    starts = np.arange(first + 1, first + rows + 1, dtype=np.uint64) * _ODD
    for index, value in enumerate([] if column is None else column.to_pylist()):
        if value is not None and _HEXADECIMAL.match(value):
            starts[index] = int(value[:16], 16)
    return starts
