"""A Delta table that a tiny model learns in an epoch or two: squares whose colour is their class."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from feed_tables import number_classes
from PIL import Image

CLASSES = ("blue", "green", "red")
SIDE = 16
_COLOURS = {"red": (220, 40, 40), "green": (40, 220, 40), "blue": (40, 40, 220)}


def square(class_name: str, number: int) -> bytes:
    noise = np.random.default_rng(number).integers(-30, 30, (SIDE, SIDE, 3))
    pixels = np.clip(np.array(_COLOURS[class_name]) + noise, 0, 255).astype("uint8")
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def coloured_rows(first: int, rows: int, split: str) -> pa.Table:
    names = [CLASSES[number % len(CLASSES)] for number in range(first, first + rows)]
    return pa.table(
        {
            "path": [f"file:/squares/{number}.jpg" for number in range(first, first + rows)],
            "image": pa.array([square(name, first + i) for i, name in enumerate(names)], pa.binary()),
            "format": ["jpeg"] * rows,
            "height": pa.array([SIDE] * rows, pa.int32()),
            "width": pa.array([SIDE] * rows, pa.int32()),
            "label": pa.array([CLASSES.index(name) for name in names], pa.int32()),
            "label_name": names,
            "split": [split] * rows,
        }
    )


def add_rows(location: str | Path, first: int, rows: int, split: str) -> None:
    write_deltalake(str(location), coloured_rows(first, rows, split), mode="append", partition_by=["split"])


def coloured_table(location: Path, train: int = 90, validation: int = 21) -> Path:
    """Version 0 has both splits and knows the names of the classes."""
    rows = [coloured_rows(0, train, "train"), coloured_rows(10_000, validation, "validation")]
    write_deltalake(str(location), pa.concat_tables(rows), mode="error", partition_by=["split"])
    number_classes(location, {name: number for number, name in enumerate(CLASSES)})
    return location


@contextmanager
def written_again(location: Path) -> Iterator[None]:
    """Puts another table with the same rows and version at a table's path, until the block ends."""
    old = location.rename(location.with_name(f"{location.name}-old"))
    try:
        coloured_table(location)
        yield
    finally:
        shutil.rmtree(location)
        old.rename(location)
