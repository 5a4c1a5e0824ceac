"""From rows as they are stored to undecoded values: image bytes or pixels, labels, and boxes as wide arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ImageError
from ...etl.images.stored_image import StoredImage
from ...etl.model.classes import LABELS_PROPERTY
from ...etl.model.schema import BOX_CORNERS
from .decoded_cache import DecodedImages
from .image_plan import ImagePlan, known_size
from .plan.epoch_order import IntArray
from .rank_batches import RowBatch

# xmin, ymin, xmax, ymax, class number, 1 for a difficult box.
BOX_COLUMNS = 6
_NO_BOX = -1
# By how many pixels rounding may move a corner past the edge of the image that it was annotated on.
_ROUNDING = 1e-3

Rows = npt.NDArray[np.float32]


def box_rows_of(images: ImagePlan, batch: RowBatch, stored: Sequence[StoredImage]) -> tuple[Rows, dict[int, str]]:
    """Gives the boxes of a batch, and what is wrong with rows that cannot be used, by row; "" for null boxes.

    Returns float32 [rows, boxes, 6]; in pixels of the image that comes out, filled up with class -1.
    """
    found: list[Rows] = []
    refused: dict[int, str] = {}
    for i, annotated in enumerate(batch.values_of(images.plan.columns.boxes)):
        if annotated is None:
            found.append(np.zeros((0, BOX_COLUMNS), np.float32))
            refused[i] = ""
            continue
        images.left_out.annotated += 1
        try:
            found.append(_row(images, annotated, stored[i]))
        except ImageError as error:
            found.append(np.zeros((0, BOX_COLUMNS), np.float32))
            refused[i] = str(error)
    most = max(map(len, found), default=0)
    rows = np.zeros((len(batch.weights), max(1, most), BOX_COLUMNS), np.float32)
    rows[..., 4] = _NO_BOX
    for row, boxes in zip(rows, found, strict=False):
        row[: len(boxes)] = boxes
    return rows, refused


def _row(images: ImagePlan, annotated: Sequence[dict[str, Any]], image: StoredImage) -> Rows:
    """Gives the boxes of one row."""
    if not annotated:
        return np.zeros((0, BOX_COLUMNS), np.float32)
    try:
        height, width = known_size(image)
    except ImageError as error:
        raise ImageError(error.reason, f"has boxes and an image that does not tell its size: {error}") from error
    corners = np.array([[box[name] for name in BOX_CORNERS] for box in annotated], np.float64)
    labels = [box["label"] for box in annotated]
    _require_usable(corners, labels, (height, width), images)
    scale_x, scale_y, offset_x, offset_y = images.placement(height, width)
    corners = np.clip(corners, 0, [width, height] * 2) * ([scale_x, scale_y] * 2) + ([offset_x, offset_y] * 2)
    boxes = np.column_stack([corners, labels, [bool(box.get("difficult")) for box in annotated]])
    return _within_limits(boxes.astype(np.float32), images)


def _require_usable(
    corners: npt.NDArray[np.float64], labels: Sequence[int | None], size: tuple[int, int], images: ImagePlan
) -> None:
    """Checks the boxes of a row, which other writers than an ingest may have left unchecked."""
    column, classes, (height, width) = images.plan.columns.boxes, images.output.box_classes or 0, size
    sides = corners[:, 2:] - corners[:, :2]
    inside = (corners[:, :2] < [width + _ROUNDING, height + _ROUNDING]).all(axis=1) & (corners[:, 2:] > -_ROUNDING).all(
        axis=1
    )
    rules = (
        (~np.isfinite(corners).all(axis=1), "with a corner that is not a finite number"),
        ((sides < 0).any(axis=1), "whose corners are exchanged"),
        (~inside, f"outside its image of {width} x {height} pixels"),
    )
    for broken, rule in rules:
        if broken.any():
            place = ", ".join(f"{value:g}" for value in corners[int(np.flatnonzero(broken)[0])])
            raise ImageError("bad_box", f"has a box ({place}) in column {column!r} {rule}")
    for label in labels:
        if label is None or not 0 <= label < classes:
            raise ImageError(
                "bad_box",
                f"has a box of class {label} in column {column!r}, outside 0 to {classes - 1}; correct it, or set "
                "data.class_names to name every class",
            )


def _within_limits(boxes: Rows, images: ImagePlan) -> Rows:
    """Leaves out, and counts, boxes below a pixel and the smallest of too many."""
    sides = boxes[:, 2:4] - boxes[:, :2]
    kept = boxes[(sides >= 1).all(axis=1)]
    counts, limit = images.left_out, images.output.box_limit
    counts.read += len(boxes)
    counts.difficult += int(boxes[:, 5].sum())
    counts.small += len(boxes) - len(kept)
    if len(kept) <= limit:
        return kept
    counts.beyond += len(kept) - limit
    area = (kept[:, 2] - kept[:, 0]) * (kept[:, 3] - kept[:, 1])
    largest: Rows = kept[np.sort(np.argsort(-area, kind="stable")[:limit])]
    return largest


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
