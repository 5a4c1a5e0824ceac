"""Delta tables of small images with layouts that the feed's tests choose: files, row groups, stored forms."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import ColumnProperties, WriterProperties, write_deltalake
from PIL import Image

HEIGHT, WIDTH = 12, 16


def colour_of(number: int) -> tuple[int, int, int]:
    """One colour per number below 8,000, far enough apart to survive JPEG."""
    return (number % 20) * 12, (number // 20 % 20) * 12, (number // 400) * 12


def pixels_of(number: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    return np.broadcast_to(np.array(colour_of(number), dtype=np.uint8), (height, width, 3)).copy()


def encoded(number: int, form: str = "jpeg", height: int = HEIGHT, width: int = WIDTH) -> bytes:
    pixels = pixels_of(number, height, width)
    if form == "raw_rgb":
        return pixels.tobytes()
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form.upper(), **({"quality": 95} if form == "jpeg" else {}))
    return buffer.getvalue()


def image_rows(numbers: Iterable[int], form: str = "jpeg", split: str = "train") -> pa.Table:
    """Rows whose label is their number and whose pixels all have the number's colour."""
    numbers = list(numbers)
    return pa.table(
        {
            "path": [f"file:/source/{n}.jpg" for n in numbers],
            "image": pa.array([encoded(n, form) for n in numbers], pa.binary()),
            "format": [form] * len(numbers),
            "height": pa.array([HEIGHT] * len(numbers), pa.int32()),
            "width": pa.array([WIDTH] * len(numbers), pa.int32()),
            "label": pa.array(numbers, pa.int32()),
            "split": [split] * len(numbers),
        }
    )


def changed(rows: pa.Table, **columns: Any) -> pa.Table:
    """Replaces columns of rows, or adds them."""
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        column = values if isinstance(values, pa.Array) else pa.array(values)
        rows = rows.append_column(name, column) if place < 0 else rows.set_column(place, name, column)
    return rows


def number_classes(location: Path, numbers: Mapping[str, int]) -> None:
    """Numbers the classes of a new table in its property, which delta-rs does not write."""
    commit = location / "_delta_log" / f"{0:020d}.json"
    properties = json.dumps({"lakelens.labels": json.dumps(numbers)})
    commit.write_text(commit.read_text().replace('"configuration":{}', f'"configuration":{properties}'))


def in_a_process(code: str, sent: Any) -> str:
    """Runs code in a process that has received `sent`, and returns what it prints."""
    begin = "import os, pickle, signal, sys\nfrom lakelens.errors import *\nsent = pickle.load(sys.stdin.buffer)\n"
    command = [sys.executable, "-c", begin + code]
    done = subprocess.run(command, input=pickle.dumps(sent), capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def append(location: Path, rows: pa.Table, row_group_rows: int = 1000, **options) -> None:
    """Adds one file (per split) to a table as one version."""
    write_deltalake(
        str(location),
        rows,
        mode="append",
        partition_by=["split"],
        writer_properties=WriterProperties(max_row_group_size=row_group_rows),
        **options,
    )


def write_layout(location: Path, files: Sequence[int], row_group_rows: int = 1000, form: str = "jpeg") -> Path:
    """Writes one file per entry with that many rows, numbered 0, 1, 2 ... over all of them."""
    first = 0
    for rows in files:
        append(location, image_rows(range(first, first + rows), form), row_group_rows)
        first += rows
    return location


def real(batch) -> list[int]:
    """The labels of a batch's rows that are no padding."""
    _, labels, weights = batch
    return np.asarray(labels)[np.asarray(weights) > 0].tolist()


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def labels_of(dataset) -> list[list[int]]:
    return [real(batch) for batch in dataset]


def write_numbers(
    folder: Path, files: list[int], row_group_rows: int, row_bytes: int = 10, compression: str = "UNCOMPRESSED"
) -> Path:
    """A table whose labels are 0, 1, 2 ... in stored order, one file per entry."""
    first = 0
    for rows in files:
        numbers = range(first, first + rows)
        table = pa.table(
            {
                "image": pa.array([bytes([n % 251]) * row_bytes for n in numbers], pa.binary()),
                "label": pa.array(numbers, pa.int32()),
            }
        )
        written = WriterProperties(
            max_row_group_size=row_group_rows,
            compression=compression,
            data_page_size_limit=50_000,
            write_batch_size=max(1, 50_000 // row_bytes),
            default_column_properties=ColumnProperties(dictionary_enabled=False),
        )
        write_deltalake(str(folder), table, mode="append", writer_properties=written)
        first += rows
    return folder
