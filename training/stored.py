"""From rows as they are stored to what is left to decode: image bytes or pixels, labels and boxes as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import BadRowError, ImageError, InvalidArgumentError
from .batches import BatchReader, RowBatch

if TYPE_CHECKING:
    from .feed import DeltaFeed

CHANNELS = 3
# Stored forms whose bytes are the pixels themselves, rows of RGB triples from the top.
RAW_FORMATS = frozenset({"raw_rgb"})
# Enough of a file to tell how it must be decoded.
_HEADER_BYTES = 64
_BOX_CORNERS = ("xmin", "ymin", "xmax", "ymax")

Pixels = npt.NDArray[np.uint8]


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
        encoded: Encoded bytes of each row, empty where a row is stored as pixels or there is none.
        pixels: uint8 [rows, height, width, 3] with the rows stored as pixels; [0, height, width, 3] if none is.
        origins: int64 [rows, 2], file index and row of the file.
        labels: int32 [rows].
        boxes: The boxes, if they were asked for.
        weights: float32 [rows], 0 for padding.
    """

    encoded: list[bytes | memoryview]
    pixels: Pixels
    origins: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32]
    boxes: Boxes | None
    weights: npt.NDArray[np.float32]


def stored_columns_of(feed: DeltaFeed, max_boxes: int | None) -> list[str]:
    """Lists the columns that a feed of images reads."""
    sizes = [name for name in ("height", "width") if max_boxes is not None and name in feed.plan.schema]
    boxes = [feed.boxes_column] if max_boxes is not None else []
    wanted = [feed.image_column, feed.label_column, feed.format_column, *boxes, *sizes]
    return list(dict.fromkeys(name for name in wanted if name is not None))


def stored_batches(
    feed: DeltaFeed, reader: BatchReader, stored: tuple[int, int], size: tuple[int, int], max_boxes: int | None
) -> Iterator[StoredBatch]:
    """Turns a rank's batches of rows into batches that are ready to be decoded.

    Args:
        feed: The feed.
        reader: Gives the batches, with the columns of `stored_columns_of`.
        stored: Height and width of the images that are stored as pixels.
        size: Height and width of the images that the feed gives.
        max_boxes: Boxes of a row; None leaves boxes out.

    Raises:
        BadRowError: If a row has no label, stored pixels of another size, or more boxes than there is room for.
    """
    for batch in reader:
        encoded, pixels = _images_of(feed, batch, stored)
        yield StoredBatch(
            encoded=encoded,
            pixels=pixels,
            origins=_padded(batch.origins(), len(batch.weights)),
            labels=_labels_of(feed, batch),
            boxes=_boxes_of(feed, batch, size, stored, max_boxes) if max_boxes is not None else None,
            weights=batch.weights,
        )


def aligned_empty(shape: tuple[int, ...]) -> Pixels:
    """Makes an uninitialised uint8 array that starts on a 64-byte boundary, which TensorFlow takes over uncopied."""
    count = int(np.prod(shape))
    buffer = np.empty(count + 64, dtype=np.uint8)
    offset = -buffer.ctypes.data % 64
    return buffer[offset : offset + count].reshape(shape)


def _padded(values: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """Gives zeros for a batch in which this rank has no row."""
    return values if len(values) == rows else np.zeros((rows, *values.shape[1:]), dtype=values.dtype)


def _images_of(feed: DeltaFeed, batch: RowBatch, stored: tuple[int, int]) -> tuple[list[bytes | memoryview], Pixels]:
    rows = len(batch.weights)
    data = batch.bytes_of(feed.image_column)
    forms = batch.values_of(feed.format_column) if feed.format_column is not None else []
    raw = [i for i, form in enumerate(forms) if form in RAW_FORMATS]
    if not raw:
        encoded = [_ready(row) for row in data]
        return [*encoded, *[b""] * (rows - len(encoded))], np.empty((0, *stored, CHANNELS), dtype=np.uint8)
    pixels = aligned_empty((rows, *stored, CHANNELS))
    flat = pixels.reshape(rows, -1)
    for i in raw:
        row = data[i]
        if row is None or len(row) != flat.shape[1]:
            found = "null" if row is None else f"{len(row)} bytes"
            raise BadRowError(
                f"{_name(feed, batch, i)} holds {found}; the feed's {stored[0]} x {stored[1]} pixels are "
                f"{flat.shape[1]} bytes. Store all raw images at one size, or encode them"
            )
        flat[i] = np.frombuffer(row, dtype=np.uint8)
    if len(raw) == rows:
        return [b""] * rows, pixels
    is_raw = set(raw)
    return [b"" if i in is_raw else _ready(row) for i, row in enumerate(data)], pixels


def _ready(row: memoryview | None) -> bytes | memoryview:
    """Gives the bytes of a row for a decoder; an image that a fast decoder would show otherwise is re-encoded."""
    if row is None:
        return b""
    return _as_plain_png(row.tobytes()) if _needs_care(row[:_HEADER_BYTES].tobytes()) else row


def _needs_care(header: bytes) -> bool:
    """Tells whether a file may be turned by EXIF, has transparency, or has 16 bits a sample.

    Fast decoders ignore the first, drop the second and cut the third; ingest and inference do not.
    """
    if header.startswith(b"\xff\xd8"):
        return b"Exif\0" in header
    if header.startswith(b"\x89PNG"):
        return header[24:25] == b"\x10" or header[25:26] in (b"\x03", b"\x04", b"\x06")
    return False


def _as_plain_png(data: bytes) -> bytes:
    from ..etl.images import decode_source, encode_png

    try:
        decoded = decode_source(data)
    except ImageError:
        return data  # the decoder will find it bad, and name its row
    return data if decoded.is_plain else encode_png(decoded.image)


def _labels_of(feed: DeltaFeed, batch: RowBatch) -> npt.NDArray[np.int32]:
    labels = np.zeros(len(batch.weights), dtype=np.int32)
    if feed.label_column is None:
        return labels
    values = batch.values_of(feed.label_column)
    for i, label in enumerate(values):
        if label is None:
            raise BadRowError(
                f"{_name(feed, batch, i)} has no label in column {feed.label_column!r}; give it one, or leave such "
                "rows out with filters"
            )
        labels[i] = label
    return labels


def _boxes_of(
    feed: DeltaFeed, batch: RowBatch, size: tuple[int, int], stored: tuple[int, int], max_boxes: int
) -> Boxes:
    rows = len(batch.weights)
    boxes = Boxes(
        np.zeros((rows, max_boxes, 4), dtype=np.float32),
        np.zeros((rows, max_boxes), dtype=np.int32),
        np.zeros(rows, dtype=np.int32),
    )
    heights, widths = (
        batch.values_of(name) if name in feed.plan.schema else [side] * len(batch.rows)
        for name, side in zip(("height", "width"), stored, strict=True)
    )
    for i, annotated in enumerate(batch.values_of(feed.boxes_column)):
        found: Sequence[dict[str, Any]] = annotated or ()
        if len(found) > max_boxes:
            raise BadRowError(
                f"{_name(feed, batch, i)} has {len(found)} boxes, max_boxes={max_boxes}; raise max_boxes, boxes are "
                "never left out"
            )
        scale = (size[1] / widths[i], size[0] / heights[i]) * 2
        for j, box in enumerate(found):
            boxes.corners[i, j] = [box[corner] * factor for corner, factor in zip(_BOX_CORNERS, scale, strict=True)]
            boxes.labels[i, j] = box["label"]
        boxes.count[i] = len(found)
    return boxes


def _name(feed: DeltaFeed, batch: RowBatch, row: int) -> str:
    file, stored_row = batch.origins()[row].tolist()
    return feed.describe_row(file, stored_row)


def check_boxes(feed: DeltaFeed, max_boxes: int | None) -> None:
    """Checks that boxes can be fed.

    Raises:
        InvalidArgumentError: If the table has no column of boxes, or there is no room for any.
    """
    if max_boxes is None:
        return
    if max_boxes < 1:
        raise InvalidArgumentError(f"max_boxes={max_boxes}: give the largest number of boxes of a row, or None")
    if feed.boxes_column not in feed.plan.schema:
        raise InvalidArgumentError(
            f"max_boxes={max_boxes}: {feed.location} has no column {feed.boxes_column!r} of boxes"
        )
