"""Stored rows to the pixels that a model takes; a row that cannot be decoded gets a reason instead of an exception."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..errors import ImageError
from ..etl.images import decode

RAW_RGB = "raw_rgb"
_RAW_CHANNELS = 3
# What Pillow calls the pixel format of an image with so many channels.
MODES = {1: "L", 3: "RGB"}

Pixels: TypeAlias = npt.NDArray[np.uint8]
Stored: TypeAlias = "bytes | bytearray | memoryview | None"


@dataclass(frozen=True)
class StoredRows:
    """Some rows of an image table; all sequences are equally long.

    Attributes:
        images: The stored bytes; None is null.
        formats: `jpeg`, `png`, `raw_rgb` or another encoded format; None when every image is encoded.
        heights: Height in pixels, needed for `raw_rgb` only.
        widths: Width in pixels, needed for `raw_rgb` only.
    """

    images: Sequence[Stored]
    formats: Sequence[str | None] | None = None
    heights: Sequence[int | None] | None = None
    widths: Sequence[int | None] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def rows(self, start: int, stop: int) -> StoredRows:
        """Takes the rows from `start` up to `stop`."""
        return StoredRows(
            self.images[start:stop],
            None if self.formats is None else self.formats[start:stop],
            None if self.heights is None else self.heights[start:stop],
            None if self.widths is None else self.widths[start:stop],
        )


def decode_rows(rows: StoredRows, pixels: Pixels) -> list[str | None]:
    """Decodes rows into `pixels`, scaling an image of another size to the model's.

    Scaling is bilinear with antialiasing, as the training feed scales.

    Args:
        rows: The stored rows.
        pixels: uint8 [rows, height, width, channels], written in place; rows that fail are left as they are.

    Returns:
        For each row None, or `<reason>: <message>`.
    """
    return [_decode_row(rows, i, pixels[i]) for i in range(len(rows))]


def _decode_row(rows: StoredRows, i: int, into: Pixels) -> str | None:
    data = rows.images[i]
    if data is None:
        return "null: the row has no image"
    try:
        if rows.formats is not None and rows.formats[i] == RAW_RGB:
            image = _raw_image(
                data, None if rows.heights is None else rows.heights[i], None if rows.widths is None else rows.widths[i]
            )
        else:
            image = decode(bytes(data))
        _copy(image, into)
    except ImageError as error:
        return f"{error.reason}: {error}"
    except Exception as error:  # noqa: BLE001  whatever one image does to its decoder, the other rows are scored
        return f"corrupt: {type(error).__name__}: {error}"
    return None


def _raw_image(data: bytes | bytearray | memoryview, height: int | None, width: int | None) -> Image.Image:
    if height is None or width is None or height < 1 or width < 1:
        raise ImageError(
            "wrong_size", f"raw_rgb needs the row's height and width in pixels, they are {height}, {width}"
        )
    if len(data) != height * width * _RAW_CHANNELS:
        raise ImageError(
            "wrong_size",
            f"{len(data)} bytes, but {height} x {width} raw_rgb pixels are {height * width * _RAW_CHANNELS} bytes",
        )
    return Image.frombytes("RGB", (width, height), bytes(data))


def _copy(image: Image.Image, into: Pixels) -> None:
    height, width, channels = into.shape
    if image.mode != MODES[channels]:
        image = image.convert(MODES[channels])
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    into[...] = np.asarray(image).reshape(into.shape)
