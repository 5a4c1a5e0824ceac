"""Reads one version of a table into pandas, without Spark: its small columns, and some rows with their images."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import NotAnImageTableError
from ...log.data_files import batches_of, open_stored, read_batches, read_columns
from ...log.snapshot import Snapshot
from ..annotations.frames import SourceFile
from ..model import schema
from ..model.classes import NO_CLASS
from ..versions.changes import class_column

NO_SPLIT = "none"
_FIRST_SPLITS = ("train", "validation", "test")
_BOX_FIELDS = (*schema.BOX_CORNERS, schema.LABEL_NAME, "difficult")
_BATCH_ROWS = 256
_THREADS = max(1, min(8, os.cpu_count() or 1))
# Bounds the images that wait in memory to be decoded.
_ROWS_AT_ONCE = 8 * _THREADS


def read_rows(snapshot: Snapshot) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Reads the small columns of every row, about 90 bytes for each image and each box."""
    if schema.IMAGE not in snapshot.schema:
        there = ", ".join(snapshot.schema)
        raise NotAnImageTableError(f"{snapshot.location} has no column {schema.IMAGE!r} (its columns: {there})")
    class_name = class_column(snapshot.schema) or schema.LABEL_NAME
    texts = (schema.SPLIT, class_name, schema.FORMAT, schema.CONTENT_HASH, schema.PATH)
    numbers = (schema.WIDTH, schema.HEIGHT, schema.SOURCE_LENGTH)
    columns = pa.schema([*((name, pa.string()) for name in texts), *((name, pa.float64()) for name in numbers)])
    parts, first = [], 0
    for file in range(len(snapshot.files)):
        rows = _images_of(read_columns(snapshot, file, columns), class_name, file, first)
        rows = _with_source_sizes(rows, _column_of(snapshot, file, schema.SOURCE))
        parts.append(_with_boxes(rows, _column_of(snapshot, file, schema.ANNOTATIONS), first))
        first += len(rows)
    if not parts:
        parts = [_with_boxes(_images_of(columns.empty_table(), class_name, 0, 0), pa.nulls(0), 0)]
    images, boxes = (pd.concat(frames, ignore_index=True) for frames in zip(*parts, strict=True))
    splits = {*images["split"]}
    order = [name for name in _FIRST_SPLITS if name in splits] + sorted(splits - {*_FIRST_SPLITS})
    images["split"] = pd.Categorical(images["split"], order)
    for frame, name in ((images, "class_name"), (images, "format"), (boxes, "class_name")):
        frame[name] = frame[name].astype("category")
    return images, boxes


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
    """Calls `work(row)` in a few threads and yields (position, result) in the version's order."""
    rows = _wanted_rows(snapshot, images, np.asarray(wanted, np.int64), columns)
    # Decoding silences warnings. Where several threads do so at the same time, none of them restores the filters, and
    # the process would never warn again.
    with warnings.catch_warnings(), ThreadPoolExecutor(_THREADS, thread_name_prefix="lakelens-profile") as pool:
        while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
            positions, values = zip(*some, strict=True)
            yield from zip(positions, pool.map(work, values), strict=True)


def _wanted_rows(
    snapshot: Snapshot, images: pd.DataFrame, wanted: npt.NDArray[np.int64], columns: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields positions and rows; reads only row groups that hold some of them."""
    is_wanted = np.zeros(len(images), bool)
    is_wanted[wanted] = True
    ends = np.cumsum(np.bincount(images["file"], minlength=len(snapshot.files)))
    for file, (first, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        if not is_wanted[first:end].any():
            continue
        with open_stored(snapshot, file) as parquet:
            stored = 0
            for group in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(group).num_rows
                kept = int(snapshot.files.kept(file, stored, count).sum())
                if is_wanted[first : first + kept].any():
                    yield from _rows_of_group(
                        batches_of(snapshot, file, parquet, columns, [group], _BATCH_ROWS), first, is_wanted
                    )
                stored, first = stored + count, first + kept


def _rows_of_group(
    batches: Iterator[pa.RecordBatch], first: int, is_wanted: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, dict[str, Any]]]:
    for batch in batches:
        for offset in np.flatnonzero(is_wanted[first : first + len(batch)]).tolist():
            (row,) = batch.slice(offset, 1).to_pylist()
            yield first + offset, row
        first += len(batch)


def _images_of(rows: pa.Table, class_name: str, file: int, first: int) -> pd.DataFrame:
    """The images of a data file, whose first row has the position `first` in the version."""
    found, hashes = rows.to_pandas(), rows.column(schema.CONTENT_HASH).to_pylist()
    # A row without a hash counts as unique content.
    contents = [text or f"row {row}" for row, text in enumerate(hashes, start=first)]
    paths = [text or f"row {row}" for row, text in enumerate(rows.column(schema.PATH).to_pylist(), start=first)]
    return pd.DataFrame(
        {
            "split": _names(found[schema.SPLIT], NO_SPLIT),
            "class_name": _names(found[class_name], NO_CLASS),
            "format": _names(found[schema.FORMAT], None),
            "width": found[schema.WIDTH],
            "height": found[schema.HEIGHT],
            "source_width": np.nan,
            "source_height": np.nan,
            "source_bytes": found[schema.SOURCE_LENGTH],
            "content": pd.util.hash_array(np.array(contents, object), categorize=False),
            "path": pd.util.hash_array(np.array(paths, object), categorize=False),
            "boxes": np.nan,
            "file": np.int32(file),
        }
    )


def _column_of(snapshot: Snapshot, file: int, name: str) -> pa.Array:
    """Reads a column of a data file; nulls if the file lacks it."""
    columns = [batch.column(0) for batch in read_batches(snapshot, file, [name])]
    return pa.chunked_array(columns).combine_chunks() if columns else pa.nulls(0)


def _with_source_sizes(images: pd.DataFrame, sources: pa.Array) -> pd.DataFrame:
    """Returns images with the sizes of their sources, if the table has them as an ingest writes them."""
    if not _has_fields(sources.type, SourceFile._fields):
        return images
    sizes = {f"source_{name}": pc.struct_field(sources, name).cast(pa.float64()) for name in ("width", "height")}
    return images.assign(**{name: np.asarray(values) for name, values in sizes.items()})


def _has_fields(kind: pa.DataType, names: Collection[str]) -> bool:
    return pa.types.is_struct(kind) and {field.name for field in kind}.issuperset(names)


def _with_boxes(images: pd.DataFrame, annotations: pa.Array, first: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns images with the number of their boxes, and the boxes; one without a finite corner does not count."""
    is_list = pa.types.is_list(annotations.type) or pa.types.is_large_list(annotations.type)
    if not is_list or not _has_fields(annotations.type.value_type, _BOX_FIELDS):
        boxes, image = pd.DataFrame({name: pd.Series(dtype=float) for name in _BOX_FIELDS}), np.empty(0, np.int64)
    else:
        lengths = np.asarray(annotations.value_lengths().fill_null(-1))
        flat = annotations.flatten()
        boxes = pa.Table.from_arrays(flat.flatten(), [field.name for field in flat.type]).to_pandas()
        whole = np.isfinite(boxes[[*schema.BOX_CORNERS]].to_numpy(float)).all(axis=1)
        boxes, image = boxes[whole], np.repeat(np.arange(len(images)), np.maximum(lengths, 0))[whole]
        images["boxes"] = np.where(lengths < 0, np.nan, np.bincount(image, minlength=len(images)))
    width, height = (boxes[f"{side}max"].to_numpy() - boxes[f"{side}min"].to_numpy() for side in "xy")
    return images, pd.DataFrame(
        {
            "image": image + first,
            "class_name": _names(boxes[schema.LABEL_NAME], None).to_numpy(),
            "width": width,
            "height": height,
            "relative_width": width / images["width"].to_numpy()[image],
            "relative_height": height / images["height"].to_numpy()[image],
            "difficult": boxes["difficult"].eq(True).to_numpy(bool),
        }
    )


def _names(texts: pd.Series, default: str | None) -> pd.Series:
    """Returns names; the default stands for null and an empty text."""
    return texts.astype(object).where(texts.notna() & (texts != ""), default)
