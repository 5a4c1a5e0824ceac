"""From rows as they are stored to undecoded values: image bytes or pixels, labels and boxes as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...etl.images.stored_image import StoredImage
from ...etl.model.classes import LABELS_PROPERTY
from .box_rows import box_rows_of
from .decoded_cache import DecodedImages
from .image_plan import ImagePlan
from .plan.epoch_order import IntArray
from .rank_batches import RowBatch

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class StoredBatch:
    """One batch before decoding."""

    images: list[StoredImage]  # What each row stores; empty if this rank has no row in the batch
    origins: npt.NDArray[np.int64]  # int64 [rows, 2], file index and row of the file, for each of `images`
    labels: npt.NDArray[np.int32]  # int32 [local rows]
    boxes: npt.NDArray[np.float32] | None  # The boxes, if they were asked for
    weights: npt.NDArray[np.float32]  # float32 [local rows], 0 for padding
    # Fills some rows of the batch's images where they are decoded already; None where they are not
    copy: Callable[[npt.NDArray[Any], range], None] | None = None


def stored_batches(
    images: ImagePlan, batches: Iterable[RowBatch], decoded: DecodedImages | None = None
) -> Iterator[StoredBatch]:
    """Turns a rank's batches of rows into batches that are ready to be decoded."""
    plan = images.plan
    for batch in batches:
        origins, undecodable, copy = batch.origins(), dict[int, str](), None
        if decoded is None:
            stored = batch.images(plan.columns, plan.image_column, images.columns)
        else:
            indices = decoded.indices(origins)
            stored, copy = decoded.stored(indices), partial(_copy_rows, decoded, indices)
            undecodable = {row: images.undecodable(why) for row, why in decoded.undecodable(indices).items()}
        labels, refused = _labels_of(images, batch)
        boxes = None
        if images.has_boxes:
            boxes, refused_boxes = box_rows_of(images, batch, stored)
            refused = {**refused_boxes, **refused}
        refused = {**undecodable, **refused}
        weights = batch.weights.copy() if refused else batch.weights
        for row, reason in sorted(refused.items()):
            if weights[row] and reason:
                images.refuse(origins[row].tolist(), reason)
            elif weights[row]:
                images.leave_unannotated_out()
            stored[row], weights[row] = StoredImage(None), 0
        yield StoredBatch(
            images=stored,
            origins=origins,
            labels=labels,
            boxes=boxes,
            weights=weights,
            copy=partial(copy, list(refused)) if copy is not None else None,
        )


def _copy_rows(
    decoded: DecodedImages, indices: IntArray, refused: Sequence[int], images: npt.NDArray[Any], rows: range
) -> None:
    """Copies some rows into the images of a batch, and zeros for those that were refused."""
    decoded.copy(indices[rows.start : rows.stop], images[rows.start : rows.stop])
    for row in refused:
        if row in rows:
            images[row] = 0


def _labels_of(images: ImagePlan, batch: RowBatch) -> tuple[npt.NDArray[np.int32], dict[int, str]]:
    """Gives the labels, and what is wrong with those that are null or outside their range, by row; these become 0."""
    labels = np.zeros(len(batch.weights), dtype=np.int32)
    column, known = images.plan.columns.label, images.plan.columns.class_numbers
    if column is None:
        return labels, {}
    values = batch.values_of(column)
    refused = {row: f"has no label in column {column!r}" for row, value in enumerate(values) if value is None}
    if known is not None:
        refused |= {
            row: f"is of class {value!r} in column {column!r}, which the table's {LABELS_PROPERTY} does not number"
            for row, value in enumerate(values)
            if value is not None and value not in known
        }
        values = [known.get(value) for value in values]
    numbers = np.array([0 if value is None else value for value in values], dtype=np.int64)
    outside = (numbers < _INT32.min) | (numbers > _INT32.max)
    labels[: len(numbers)] = np.where(outside, 0, numbers)
    return labels, refused | {
        row: f"has label {values[row]} in column {column!r}, outside {_INT32.min} to {_INT32.max}, what int32 holds"
        for row in np.flatnonzero(outside).tolist()
    }
