"""Photographs of two classes that nobody confuses: one disc, or stripes, in any colours and light."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from PIL import Image


def photograph(label: int, side: int, random: np.random.Generator) -> bytes:
    rows, columns = np.mgrid[0:side, 0:side] / side
    if label == 0:
        middle, radius = random.uniform(0.35, 0.65, 2), random.uniform(0.2, 0.3)
        shape = (columns - middle[0]) ** 2 + (rows - middle[1]) ** 2 < radius**2
    else:
        shape = np.sin(2 * np.pi * (columns * random.uniform(4, 7) + random.uniform())) > 0
    colours = np.where(shape[..., None], random.uniform(60, 255, 3), random.uniform(0, 120, 3))
    pixels = colours * random.uniform(0.5, 1) + random.normal(0, 12, (side, side, 3))
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype("uint8")).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def photograph_table(location: Path, seed: int, train: int = 160, validation: int = 40, side: int = 48) -> Path:
    """Version 0 has both splits, the classes in turn."""
    random = np.random.default_rng(seed)
    labels = [number % 2 for number in range(train + validation)]
    table = pa.table(
        {
            "image": pa.array([photograph(label, side, random) for label in labels], pa.binary()),
            "label": pa.array(labels, pa.int32()),
            "split": ["train"] * train + ["validation"] * validation,
        }
    )
    write_deltalake(str(location), table, partition_by=["split"])
    return location
