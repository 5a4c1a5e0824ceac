"""Counts the boxes of a version, batch by batch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model import schema
from .data import (
    ASPECT_BINS,
    ASPECT_RANGE,
    MEDIUM_AREA,
    MOST_BOXES_SHOWN,
    MOST_SAMPLES,
    RELATIVE_SIDE_BINS,
    SMALL_AREA,
    BoxSizes,
    Histogram,
)

_GRID = 20


@dataclass
class BoxCounts:
    """Boxes, counted batch by batch."""

    by_class: Counter[tuple[str, str]] = field(default_factory=Counter)
    per_image: Counter[int] = field(default_factory=Counter)
    images: int = 0
    difficult: int = 0
    areas: Counter[str] = field(default_factory=Counter)
    relative_side: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(RELATIVE_SIDE_BINS, np.int64))
    aspect: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(ASPECT_BINS, np.int64))
    grid: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((_GRID, _GRID), np.int64))
    rows_of_class: dict[str, dict[int, int]] = field(default_factory=dict)

    def add(
        self,
        columns: Mapping[str, pa.Array],
        splits: Sequence[str],
        first_row: int,
        contents: npt.NDArray[np.uint64],
    ) -> None:
        """Takes the boxes of a batch that starts at a row, with the split and the content of each of its rows."""
        annotations = columns[schema.ANNOTATIONS]
        lengths = np.asarray(annotations.value_lengths().fill_null(-1))
        flat = annotations.flatten()
        image = np.repeat(np.arange(len(lengths)), np.maximum(lengths, 0))
        corners = np.stack([floats_of(flat.field(name), len(flat)) for name in schema.BOX_CORNERS])
        # A box that lacks a corner has no size, and is none.
        whole = np.isfinite(corners).all(axis=0) & flat.is_valid().to_numpy(zero_copy_only=False)
        flat, image, corners = flat.filter(pa.array(whole)), image[whole], corners[:, whole]
        lengths = np.where(lengths < 0, lengths, np.bincount(image, minlength=len(lengths)))
        for count, images in Counter(np.minimum(lengths[lengths >= 0], MOST_BOXES_SHOWN).tolist()).items():
            self.per_image[count] += images
        self.images += int((lengths > 0).sum())
        if len(flat) == 0:
            return
        width, height = (floats_of(columns.get(name), len(lengths))[image] for name in (schema.WIDTH, schema.HEIGHT))
        across, down = corners[2] - corners[0], corners[3] - corners[1]
        names = flat.field(schema.LABEL_NAME).to_pylist()
        self.by_class.update(
            (name, splits[index]) for name, index in zip(names, image.tolist(), strict=True) if name is not None
        )
        for name, index in dict.fromkeys(zip(names, image.tolist(), strict=True)):
            if name is not None:
                self._keep_row(name, int(contents[index]), first_row + index)
        self.difficult += sum(1 for value in flat.field("difficult").to_pylist() if value)
        with np.errstate(divide="ignore", invalid="ignore"):
            self._count(across, down, across / width, down / height)

    def _keep_row(self, name: str, content: int, row: int) -> None:
        """Keeps a few rows of each class, those of the smallest content hash: a sample that no order of rows biases."""
        kept = self.rows_of_class.setdefault(name, {})
        kept[content] = row
        if len(kept) > MOST_SAMPLES:
            del kept[max(kept)]

    def _count(self, across: Any, down: Any, relative_width: Any, relative_height: Any) -> None:
        area = across * down
        self.areas["small"] += int((area < SMALL_AREA).sum())
        self.areas["medium"] += int(((area >= SMALL_AREA) & (area < MEDIUM_AREA)).sum())
        self.areas["large"] += int((area >= MEDIUM_AREA).sum())
        self.relative_side += counts_between(np.sqrt(relative_width * relative_height), RELATIVE_SIDE_BINS, (0.0, 1.0))
        self.aspect += counts_between(np.clip(np.log2(across / down), *ASPECT_RANGE), ASPECT_BINS, ASPECT_RANGE)
        bounds = [(0, 1), (0, 1)]
        self.grid += np.histogram2d(relative_height, relative_width, bins=_GRID, range=bounds)[0].astype(np.int64)

    def summary(self) -> BoxSizes | None:
        """The boxes as a profile shows them; None when there are none."""
        total = sum(self.areas.values())
        if total == 0:
            return None
        return BoxSizes(
            total=total,
            difficult=self.difficult,
            images=self.images,
            per_image=dict(sorted(self.per_image.items())),
            small=self.areas["small"],
            medium=self.areas["medium"],
            large=self.areas["large"],
            relative_side=histogram_of(self.relative_side, (0.0, 1.0)),
            aspect=histogram_of(self.aspect, ASPECT_RANGE),
            width_by_height=tuple(tuple(int(count) for count in row) for row in self.grid),
        )


def holds_boxes(kind: pa.DataType) -> bool:
    """Whether a column is of boxes as lakelens writes them; what another writer calls annotations may be anything."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    return all(
        kind.value_type.get_field_index(name) >= 0 for name in (*schema.BOX_CORNERS, schema.LABEL_NAME, "difficult")
    )


def floats_of(column: pa.Array | None, rows: int) -> npt.NDArray[np.float32]:
    """Reads a numeric column as float32, NaN where it is null; None is a column of nulls."""
    if column is None:
        return np.full(rows, np.nan, np.float32)
    return np.asarray(column.cast(pa.float64()).fill_null(math.nan), dtype=np.float32)


def counts_between(values: Any, bins: int, bounds: tuple[float, float]) -> npt.NDArray[np.int64]:
    """Counts finite values in equal bins between two bounds."""
    return np.histogram(values[np.isfinite(values)], bins=bins, range=bounds)[0].astype(np.int64)


def histogram_of(counts: npt.NDArray[np.int64], bounds: tuple[float, float]) -> Histogram:
    """Puts the edges to the counts of equal bins."""
    edges = np.linspace(*bounds, len(counts) + 1)
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()))
