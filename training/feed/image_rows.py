"""From rows as they are stored to undecoded values: image bytes or pixels, labels and boxes as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import BadRowError, ImageError
from ...etl.images.stored_image import StoredImage
from ...etl.model.labels import LABELS_PROPERTY
from ...etl.model.schema import BOX_CORNERS
from .box_rows import box_rows_of, size_for_boxes
from .decoded_cache import DecodedImages
from .image_plan import ImagePlan
from .plan.epoch_order import IntArray
from .rank_batches import RowBatch

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Boxes:
    """The boxes of a batch, padded with zeros.

    Attributes:
        corners: float32 [rows, boxes, 4]: xmin, ymin, xmax, ymax in pixels of the image that the feed gives.
        labels: int32 [rows, boxes].
        count: int32 [rows], number of a row's boxes without padding.
    """

    corners: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]
    count: npt.NDArray[np.int32]


@dataclass(frozen=True)
class StoredBatch:
    """One batch before decoding.

    Attributes:
        images: What each row stores; empty if this rank has no row in the batch.
        origins: int64 [rows, 2], file index and row of the file, for each of `images`.
        labels: int32 [local rows].
        boxes: The boxes, if they were asked for.
        box_rows: The boxes as one array, if that was asked for.
        weights: float32 [local rows], 0 for padding.
        copy: Fills some rows of the batch's images where they are decoded already; None where they are not.
    """

    images: list[StoredImage]
    origins: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32]
    boxes: Boxes | None
    box_rows: npt.NDArray[np.float32] | None
    weights: npt.NDArray[np.float32]
    copy: Callable[[npt.NDArray[Any], range], None] | None = None


def stored_batches(
    images: ImagePlan, batches: Iterable[RowBatch], decoded: DecodedImages | None = None
) -> Iterator[StoredBatch]:
    """Turns a rank's batches of rows into batches that are ready to be decoded.

    Args:
        images: What comes out.
        batches: The batches, with the columns of the plan.
        decoded: The images of all rows, where they are decoded already.

    Raises:
        BadRowError: If a row has more boxes than there is space for; if bad rows are errors, also if it has no label,
            or one outside its range.
    """
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
        if images.max_boxes is not None:
            boxes, refused_boxes = _boxes_of(images, batch, stored, images.max_boxes)
            refused = {**refused_boxes, **refused}
        box_rows = None
        if images.box_classes is not None:
            box_rows, refused_boxes = box_rows_of(images, batch, stored)
            refused = {**refused_boxes, **refused}
        refused = {**undecodable, **refused}
        weights = batch.weights.copy() if refused else batch.weights
        for row, reason in sorted(refused.items()):
            if weights[row]:
                images.refuse(origins[row].tolist(), reason)
            stored[row], weights[row] = StoredImage(None), 0
        yield StoredBatch(
            images=stored,
            origins=origins,
            labels=labels,
            boxes=boxes,
            box_rows=box_rows,
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
    column, known, classes = images.plan.columns.label, images.plan.columns.class_numbers, images.classes
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
    least, most = (_INT32.min, _INT32.max) if classes is None else (0, min(classes - 1, _INT32.max))
    outside = (numbers < least) | (numbers > most)
    labels[: len(numbers)] = np.where(outside, 0, numbers)
    rule = "what int32 holds" if classes is None else f"the {classes} classes of one_hot"
    return labels, refused | {
        row: f"has label {values[row]} in column {column!r}, outside {least} to {most}, {rule}"
        for row in np.flatnonzero(outside).tolist()
    }


def _boxes_of(
    images: ImagePlan, batch: RowBatch, stored: Sequence[StoredImage], max_boxes: int
) -> tuple[Boxes, dict[int, str]]:
    """Gives the boxes, and what is wrong by row: the size of the image is unknown, or a label outside its range."""
    rows, column = len(batch.weights), images.plan.columns.boxes
    numbers = np.zeros((rows, max_boxes), dtype=np.int64)
    refused: dict[int, str] = {}
    boxes = Boxes(
        np.zeros((rows, max_boxes, 4), dtype=np.float32),
        np.zeros((rows, max_boxes), dtype=np.int32),
        np.zeros(rows, dtype=np.int32),
    )
    for i, annotated in enumerate(batch.values_of(column)):
        found: Sequence[dict[str, Any]] = annotated or ()
        if len(found) > max_boxes:
            where = images.plan.describe_row(*batch.origins()[i].tolist())
            raise BadRowError(
                f"{where} has {len(found)} boxes, max_boxes={max_boxes}; raise max_boxes, boxes are never left out"
            )
        if not found:
            continue
        try:
            placement = images.placement(*size_for_boxes(stored[i]))
        except ImageError as error:
            refused[i] = f"has boxes and an image that does not tell its size: {error}"
            continue
        scale, offset = placement[:2] * 2, placement[2:] * 2
        for j, box in enumerate(found):
            boxes.corners[i, j] = [
                box[corner] * factor + by for corner, factor, by in zip(BOX_CORNERS, scale, offset, strict=True)
            ]
            numbers[i, j] = box["label"]
        boxes.count[i] = len(found)
    outside = (numbers < _INT32.min) | (numbers > _INT32.max)
    outside_by_row = {
        row: f"has box label {numbers[row][outside[row]][0]} in column {column!r}, outside {_INT32.min} to "
        f"{_INT32.max}, what int32 holds"
        for row in np.flatnonzero(outside.any(axis=1)).tolist()
    }
    for row in outside_by_row:
        boxes.corners[row], numbers[row], boxes.count[row] = 0, 0, 0
    boxes.labels[...] = numbers
    return boxes, {**refused, **outside_by_row}
