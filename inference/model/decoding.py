"""Stored rows to the pixels that a model takes; a row that cannot be decoded gets a reason instead of an exception."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...errors import ImageError
from ...etl.images.stored_image import Bytes, PixelDecoder, Pixels, StoredImage, size_of


@dataclass(frozen=True)
class StoredRows:
    """Some rows of an image table; all sequences are equally long.

    Attributes:
        images: The stored bytes; None is null.
        formats: `jpeg`, `png`, `raw_rgb` or another encoded format; None when every image is encoded.
        heights: Height in pixels, needed for `raw_rgb` only.
        widths: Width in pixels, needed for `raw_rgb` only.
    """

    images: Sequence[Bytes | None]
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


def decode_rows(
    rows: StoredRows, pixels: Pixels, decoder: PixelDecoder, sizes: npt.NDArray[np.int32] | None = None
) -> list[str | None]:
    """Decodes rows into `pixels` as the training feed does, an image of another size scaled to the model's.

    Args:
        rows: The stored rows.
        pixels: uint8 [rows, height, width, channels], written in place; a row that fails may hold anything.
        decoder: Decodes them.
        sizes: int32 [rows, 2], written in place: height and width of each image; None if they are not needed.

    Returns:
        For each row None, or `<reason>: <message>`.
    """
    nothing = [None] * len(rows)
    images = map(StoredImage, rows.images, rows.formats or nothing, rows.heights or nothing, rows.widths or nothing)
    into = zip(pixels, [None] * len(rows) if sizes is None else sizes, strict=True)
    return [_decode_row(decoder, image, *places) for image, places in zip(images, into, strict=True)]


def _decode_row(
    decoder: PixelDecoder, image: StoredImage, pixels: Pixels, size: npt.NDArray[np.int32] | None
) -> str | None:
    try:
        decoder.decode(image, pixels)
        if size is not None:
            size[:] = size_of(image)
    except ImageError as error:
        return f"{error.reason}: {error}"
    except Exception as error:  # noqa: BLE001  whatever one image does to its decoder, the other rows are scored
        return f"corrupt: {type(error).__name__}: {error}"
    return None
