"""From rows as they are stored to what is left to decode: image bytes or pixels, labels and boxes as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import BadRowError, ImageError, InvalidArgumentError
from ..etl.schema import BOX_CORNERS
from .batches import BatchReader, RowBatch
from .cursors import RowGroupCursor
from .decode import size_of
from .plan import FeedPlan, files_missing
from .rowgroups import FileLayout, RowGroup

if TYPE_CHECKING:
    from .feed import DeltaFeed

# Stored forms whose bytes are the pixels themselves, rows of RGB triples from the top.
RAW_FORMATS = frozenset({"raw_rgb"})
# Rows of each file that are looked at for the size of the images, in case the first ones are bad.
_SIZED_ROWS = 16
_INT32 = np.iinfo(np.int32)
_SIDES = ("height", "width")


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
        images: Bytes of each row, None where the row holds null; empty if this rank has no row in the batch.
        raw: Rows whose bytes are pixels.
        origins: int64 [rows, 2], file index and row of the file, for each of `images`.
        labels: int32 [local rows].
        boxes: The boxes, if they were asked for.
        weights: float32 [local rows], 0 for padding.
    """

    images: list[memoryview | None]
    raw: frozenset[int]
    origins: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32]
    boxes: Boxes | None
    weights: npt.NDArray[np.float32]


def stored_columns_of(feed: DeltaFeed, max_boxes: int | None) -> list[str]:
    """Lists the columns that a feed of images reads."""
    sizes = [name for name in _SIDES if max_boxes is not None and name in feed.plan.schema]
    boxes = [feed.boxes_column] if max_boxes is not None else []
    wanted = [feed.image_column, feed.label_column, feed.format_column, *boxes, *sizes]
    return list(dict.fromkeys(name for name in wanted if name is not None))


def stored_batches(
    feed: DeltaFeed,
    reader: BatchReader,
    stored: tuple[int, int] | None,
    size: tuple[int, int],
    max_boxes: int | None,
    *,
    classes: int | None,
    policy: str,
) -> Iterator[StoredBatch]:
    """Turns a rank's batches of rows into batches that are ready to be decoded.

    Args:
        feed: The feed.
        reader: Gives the batches, with the columns of `stored_columns_of`.
        stored: Height and width of images that are stored as pixels; None if no row tells it.
        size: Height and width of the images that the feed gives.
        max_boxes: Boxes of a row; None leaves boxes out.
        classes: Number of classes that labels are below; None takes any int32.
        policy: `error` raises at a label that is null or outside its range, `skip` gives its row weight 0.

    Raises:
        BadRowError: If a row has more boxes than there is room for; of the policy `error`, also if it has no label, or
            one outside its range.
    """
    for batch in reader:
        forms = batch.values_of(feed.format_column) if feed.format_column is not None else []
        images, weights = batch.bytes_of(feed.image_column), batch.weights
        raw = frozenset(i for i, form in enumerate(forms) if form in RAW_FORMATS)
        labels, refused = _labels_of(feed, batch, classes)
        boxes = None
        if max_boxes is not None:
            sizes = _Sizes.of_batch(feed, batch, images, raw, stored)
            boxes, refused_boxes = _boxes_of(feed, batch, size, sizes, max_boxes)
            refused = {**refused_boxes, **refused}
        if refused:
            weights = weights.copy()
            _refuse(feed, batch, refused, policy, images, weights)
        yield StoredBatch(
            images=images,
            raw=raw,
            origins=batch.origins(),
            labels=labels,
            boxes=boxes,
            weights=weights,
        )


def _refuse(
    feed: DeltaFeed,
    batch: RowBatch,
    refused: Mapping[int, str],
    policy: str,
    images: list[memoryview | None],
    weights: npt.NDArray[np.float32],
) -> None:
    """Raises at the first of some bad rows, or takes the image and the weight of all of them."""
    for row, reason in sorted(refused.items()):
        if weights[row]:
            feed.skipped.refuse(f"{_name(feed, batch, row)} {reason}", policy)
        images[row], weights[row] = None, 0


def _labels_of(feed: DeltaFeed, batch: RowBatch, classes: int | None) -> tuple[npt.NDArray[np.int32], dict[int, str]]:
    """Gives the labels, and what is wrong with those that are null or outside their range, by row; these become 0."""
    labels = np.zeros(len(batch.weights), dtype=np.int32)
    if feed.label_column is None:
        return labels, {}
    values = batch.values_of(feed.label_column)
    refused = {
        row: f"has no label in column {feed.label_column!r}" for row, value in enumerate(values) if value is None
    }
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
    feed: DeltaFeed, batch: RowBatch, size: tuple[int, int], sizes: _Sizes, max_boxes: int
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
            height, width = sizes.of(i)
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


@dataclass(frozen=True)
class _Sizes:
    """Heights and widths of the stored images of a batch: what the table says of a row, else what its image says.

    Attributes:
        columns: Heights and widths of the rows as the table holds them; empty without such columns.
        images: Bytes of each row.
        raw: Rows whose bytes are pixels.
        stored: Height and width of all of these.
    """

    columns: tuple[list[int | None], ...]
    images: Sequence[memoryview | None]
    raw: frozenset[int]
    stored: tuple[int, int] | None

    @classmethod
    def of_batch(
        cls,
        feed: DeltaFeed,
        batch: RowBatch,
        images: Sequence[memoryview | None],
        raw: frozenset[int],
        stored: tuple[int, int] | None,
    ) -> _Sizes:
        columns = tuple(batch.values_of(name) for name in _SIDES) if _has_sizes(feed.plan) else ()
        return cls(columns, images, raw, stored)

    def of(self, row: int) -> tuple[int, int]:
        """Gives a row's height and width.

        Raises:
            ImageError: If neither the table nor the image tells them.
        """
        height, width = (column[row] for column in self.columns) if self.columns else (None, None)
        if height and width:
            return height, width
        if row in self.raw:
            if self.stored is None:
                raise ImageError("wrong_size", "it is stored as pixels without a height and width")
            return self.stored
        return size_of(bytes(self.images[row] or b""))


def _name(feed: DeltaFeed, batch: RowBatch, row: int) -> str:
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


def size_of_first_image(feed: DeltaFeed) -> tuple[int, int]:
    """Finds the height and width of the first image of a feed's rows that tells them.

    Raises:
        BadRowError: If none of the first rows of each file does.
        VersionFilesMissingError: If a file that is looked at is gone.
    """
    plan = feed.plan
    looked_at = 0
    for file in np.flatnonzero(plan.files.rows).tolist():
        try:
            for row in _first_rows(plan, file, _size_columns_of(feed)):
                looked_at += 1
                size = _size_in(feed, row)
                if size is not None:
                    return size
        except FileNotFoundError as error:
            raise files_missing(plan.location, plan.version, [plan.file_location(file)]) from error
    raise BadRowError(
        f"{plan.location}@{plan.version}: none of the {looked_at} rows that were looked at, the first {_SIZED_ROWS} of "
        f"each file, tells the size of its image in column {feed.image_column!r}; give image_size, or leave such rows "
        "out with filters"
    )


def _has_sizes(plan: FeedPlan) -> bool:
    return plan.schema.keys() >= set(_SIDES)


def _size_columns_of(feed: DeltaFeed) -> tuple[str, ...]:
    sizes = [name for name in _SIDES if name in feed.plan.schema]
    forms = [feed.format_column, *sizes] if feed.format_column is not None else []
    return tuple(dict.fromkeys([feed.image_column, *forms]))


def _first_rows(plan: FeedPlan, file: int, columns: tuple[str, ...]) -> Iterator[RowGroup]:
    """Reads the first rows of a file that the plan's filters keep, one at a time."""
    layout = FileLayout.of(plan, file)
    left = _SIZED_ROWS
    for row_group, count in enumerate(layout.rows):
        kept = range(min(count, left)) if layout.kept is None else layout.kept[row_group][:left].tolist()
        left -= len(kept)
        if not kept:
            continue
        with closing(RowGroupCursor(plan, file, layout, row_group, columns)) as cursor:
            for row in kept:
                yield RowGroup(file, layout.starts[row_group] + row, cursor.read(row, row + 1), {})


def _size_in(feed: DeltaFeed, row: RowGroup) -> tuple[int, int] | None:
    """Finds the size of the image in a single row; None if it does not tell."""
    if feed.format_column is not None and row.values(feed.format_column)[0] in RAW_FORMATS:
        if not _has_sizes(feed.plan):
            return None
        height, width = (row.values(name)[0] for name in _SIDES)
        return (int(height), int(width)) if height and width else None
    with suppress(ImageError):
        return size_of(bytes(row.binary(feed.image_column).at(0) or b""))
    return None
