"""From rows as they are stored to what is left to decode: image bytes or pixels, labels and boxes as arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...errors import BadRowError, ImageError, InvalidArgumentError
from ...etl.images.stored_image import StoredImage, size_of
from ...etl.model.labels import LABELS_PROPERTY
from ...etl.model.schema import BOX_CORNERS, HEIGHT, WIDTH
from .decode import undecodable
from .image_sizes import size_columns_of
from .rank_batches import RowBatch

if TYPE_CHECKING:
    from .cached_batches import CachedBatch
    from .decoded_cache import DecodedImages
    from .feed import DeltaFeed

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Boxes:
    """The boxes of a batch, padded with zeros.

    Attributes:
        corners: float32 [rows, boxes, 4]: xmin, ymin, xmax, ymax in pixels of the image that the feed gives.
        labels: int32 [rows, boxes].
        count: int32 [rows], how many of a row's boxes are no padding.
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
        weights: float32 [local rows], 0 for padding.
        decoded: Copies the rows from `first` to `last` where they are decoded already: called with the batch's images,
            `first` and `last`.
    """

    images: list[StoredImage]
    origins: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32]
    boxes: Boxes | None
    weights: npt.NDArray[np.float32]
    decoded: Callable[[npt.NDArray[Any], int, int], None] | None = None


def stored_columns_of(feed: DeltaFeed, max_boxes: int | None) -> list[str]:
    """Lists the columns that a feed of images reads."""
    boxes = [feed.boxes_column, *size_columns_of(feed.plan)] if max_boxes is not None else []
    wanted = [*image_columns_of(feed, feed.image_column), feed.label_column, *boxes]
    return list(dict.fromkeys(name for name in wanted if name is not None))


def small_columns_of(feed: DeltaFeed, max_boxes: int | None) -> list[str]:
    """Lists the columns that a feed of decoded images reads."""
    wanted = (feed.label_column, feed.boxes_column if max_boxes is not None else None)
    return list(dict.fromkeys(name for name in wanted if name is not None))


def stored_batches(
    feed: DeltaFeed,
    batches: Iterable[RowBatch] | Iterable[CachedBatch],
    size: tuple[int, int],
    max_boxes: int | None,
    *,
    classes: int | None,
    policy: str,
    decoded: DecodedImages | None = None,
) -> Iterator[StoredBatch]:
    """Turns a rank's batches of rows into batches that are ready to be decoded.

    Args:
        feed: The feed.
        batches: The batches, with the columns of `stored_columns_of`; without those of the image if it is decoded.
        size: Height and width of the images that the feed gives.
        max_boxes: Boxes of a row; None leaves boxes out.
        classes: Number of classes that labels are below; None takes any int32.
        policy: `error` raises at a label that is null or outside its range, `skip` gives its row weight 0.
        decoded: The decoded images of all rows, for batches of the cache.

    Raises:
        BadRowError: If a row has more boxes than there is space for; of the policy `error`, also if it has no label, or
            one outside its range.
    """
    columns = stored_columns_of(feed, max_boxes)
    for batch in batches:
        undecoded: dict[int, str] = {}
        if isinstance(batch, RowBatch):
            sized = images = images_of(feed, batch, feed.image_column, columns)
        else:
            sized, undecoded = _decoded_of(batch, decoded, size)
            images = list(sized)
        weights = batch.weights
        labels, refused = _labels_of(feed, batch, classes)
        boxes = None
        if max_boxes is not None:
            boxes, refused_boxes = _boxes_of(feed, batch, sized, size, max_boxes)
            refused = {**refused_boxes, **refused}
        refused = {**undecoded, **refused}
        if refused:
            weights = weights.copy()
            _refuse(feed, batch, refused, policy, images, weights)
        copy = None
        if decoded is not None and not isinstance(batch, RowBatch):
            copy = partial(_copy_decoded, decoded.images, batch.rows, list(refused))
        yield StoredBatch(
            images=images,
            origins=batch.origins(),
            labels=labels,
            boxes=boxes,
            weights=weights,
            decoded=copy,
        )


def image_columns_of(feed: DeltaFeed, image_column: str) -> list[str]:
    """Lists the columns that tell an image: its bytes and, of tables that name the stored form, form and size."""
    sizes = size_columns_of(feed.plan) if feed.format_column is not None else ()
    return [name for name in (image_column, feed.format_column, *sizes) if name is not None]


def images_of(feed: DeltaFeed, batch: RowBatch, image_column: str, columns: Collection[str]) -> list[StoredImage]:
    """Gives what each row of a batch stores of its image.

    Args:
        feed: The feed.
        batch: The rows.
        image_column: Name of the column of image bytes.
        columns: Names of the columns that were read.
    """
    nothing = [None] * len(batch.rows)
    forms, heights, widths = (
        batch.values_of(name) if name is not None and name in columns else nothing
        for name in (feed.format_column, HEIGHT, WIDTH)
    )
    return list(map(StoredImage, batch.bytes_of(image_column), forms, heights, widths))


def _decoded_of(
    batch: CachedBatch, decoded: DecodedImages | None, size: tuple[int, int]
) -> tuple[list[StoredImage], dict[int, str]]:
    """Gives the sizes of a batch's images before they were resized, and why rows do not decode, by row."""
    assert decoded is not None  # noqa: S101  they come together
    sized = [StoredImage(None, None, *pair) for pair in decoded.sizes[batch.rows].tolist()]
    rows = enumerate(batch.rows.tolist()) if decoded.bad else ()
    return sized, {i: undecodable(size, decoded.bad[row]) for i, row in rows if row in decoded.bad}


def _copy_decoded(
    decoded: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int64],
    refused: Collection[int],
    images: npt.NDArray[Any],
    first: int,
    last: int,
) -> None:
    """Copies decoded rows into a batch, and zeros for those that were refused."""
    part = images[first:last].reshape(last - first, -1)
    if part.dtype == np.uint8:
        np.take(decoded, rows[first:last], axis=0, out=part, mode="clip")  # "raise" would copy twice
    else:
        part[...] = decoded[rows[first:last]]
    for row in refused:
        if first <= row < last:
            images[row] = 0


def _refuse(
    feed: DeltaFeed,
    batch: RowBatch | CachedBatch,
    refused: Mapping[int, str],
    policy: str,
    images: list[StoredImage],
    weights: npt.NDArray[np.float32],
) -> None:
    """Raises at the first of some bad rows, or takes the image and the weight of all of them."""
    for row, reason in sorted(refused.items()):
        if weights[row]:
            feed.skipped.refuse(f"{_name(feed, batch, row)} {reason}", policy)
        images[row], weights[row] = StoredImage(None), 0


def _labels_of(
    feed: DeltaFeed, batch: RowBatch | CachedBatch, classes: int | None
) -> tuple[npt.NDArray[np.int32], dict[int, str]]:
    """Gives the labels, and what is wrong with those that are null or outside their range, by row; these become 0."""
    labels = np.zeros(len(batch.weights), dtype=np.int32)
    if feed.label_column is None:
        return labels, {}
    values = batch.values_of(feed.label_column)
    refused = {
        row: f"has no label in column {feed.label_column!r}" for row, value in enumerate(values) if value is None
    }
    known = feed.class_numbers()
    if known is not None:
        refused |= {
            row: f"is of class {value!r} in column {feed.label_column!r}, which the table's {LABELS_PROPERTY} does not "
            "number"
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
        row: f"has label {values[row]} in column {feed.label_column!r}, outside {least} to {most}, {rule}"
        for row in np.flatnonzero(outside).tolist()
    }


def _boxes_of(
    feed: DeltaFeed,
    batch: RowBatch | CachedBatch,
    images: Sequence[StoredImage],
    size: tuple[int, int],
    max_boxes: int,
) -> tuple[Boxes, dict[int, str]]:
    """Gives the boxes, and what is wrong by row: the size of the image is unknown, or a label outside its range."""
    rows = len(batch.weights)
    numbers = np.zeros((rows, max_boxes), dtype=np.int64)
    refused: dict[int, str] = {}
    boxes = Boxes(
        np.zeros((rows, max_boxes, 4), dtype=np.float32),
        np.zeros((rows, max_boxes), dtype=np.int32),
        np.zeros(rows, dtype=np.int32),
    )
    for i, annotated in enumerate(batch.values_of(feed.boxes_column)):
        found: Sequence[dict[str, Any]] = annotated or ()
        if len(found) > max_boxes:
            raise BadRowError(
                f"{_name(feed, batch, i)} has {len(found)} boxes, max_boxes={max_boxes}; raise max_boxes, boxes are "
                "never left out"
            )
        if not found:
            continue
        try:
            height, width = _size_for_boxes(images[i])
        except ImageError as error:
            refused[i] = f"has boxes and an image that does not tell its size: {error}"
            continue
        scale = (size[1] / width, size[0] / height) * 2
        for j, box in enumerate(found):
            boxes.corners[i, j] = [box[corner] * factor for corner, factor in zip(BOX_CORNERS, scale, strict=True)]
            numbers[i, j] = box["label"]
        boxes.count[i] = len(found)
    outside = (numbers < _INT32.min) | (numbers > _INT32.max)
    outside_by_row = {
        row: f"has box label {numbers[row][outside[row]][0]} in column {feed.boxes_column!r}, outside {_INT32.min} to "
        f"{_INT32.max}, what int32 holds"
        for row in np.flatnonzero(outside.any(axis=1)).tolist()
    }
    for row in outside_by_row:
        boxes.corners[row], numbers[row], boxes.count[row] = 0, 0, 0
    boxes.labels[...] = numbers
    return boxes, {**refused, **outside_by_row}


def _size_for_boxes(image: StoredImage) -> tuple[int, int]:
    """Gives what the table says of an image's height and width, else what the image says."""
    return (image.height, image.width) if image.height and image.width else size_of(image)


def _name(feed: DeltaFeed, batch: RowBatch | CachedBatch, row: int) -> str:
    file, stored_row = batch.origins()[row].tolist()
    return feed.describe_row(file, stored_row)


def check_boxes(feed: DeltaFeed, max_boxes: int | None) -> None:
    """Checks that boxes can be fed.

    Raises:
        InvalidArgumentError: If the table has no column of boxes.
    """
    if max_boxes is not None and feed.boxes_column not in feed.plan.schema:
        raise InvalidArgumentError(
            f"max_boxes={max_boxes}: {feed.location} has no column {feed.boxes_column!r} of boxes"
        )
