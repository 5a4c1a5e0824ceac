"""Stored rows to the pixels that a model takes; a row that cannot be decoded gets a reason instead of an exception."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import ImageError
from ...etl.annotations.frames import ImageFrames
from ...etl.images.stored_image import Bytes, PixelDecoder, Pixels, StoredImage, size_of

# Of `ImageFrames`; None for an image that was not decoded, and for a task that needs none.
Frames: TypeAlias = npt.NDArray[np.object_]


@dataclass(frozen=True)
class StoredRows:
    """Some rows of an image table; all sequences are equally long."""

    images: Sequence[Bytes | None]  # The stored bytes; None is null
    # `jpeg`, `png`, `raw_rgb` or another encoded format; None when every image is encoded
    formats: Sequence[str | None] | None = None
    heights: Sequence[int | None] | None = None  # Height in pixels, needed for `raw_rgb` only
    widths: Sequence[int | None] | None = None  # Width in pixels, needed for `raw_rgb` only
    sources: Sequence[Mapping[str, Any] | None] | None = None  # Values of the column `source`; None if the rows lack it

    def __len__(self) -> int:
        return len(self.images)

    def rows(self, start: int, stop: int) -> StoredRows:
        """Takes the rows from `start` up to `stop`."""
        return StoredRows(
            self.images[start:stop],
            None if self.formats is None else self.formats[start:stop],
            None if self.heights is None else self.heights[start:stop],
            None if self.widths is None else self.widths[start:stop],
            None if self.sources is None else self.sources[start:stop],
        )


def decode_rows(
    rows: StoredRows, pixels: Pixels, decoder: PixelDecoder, frames: Frames | None = None
) -> list[str | None]:
    """Decodes rows into `pixels` as the training feed does, an image of another size scaled to the model's.

    Returns for each row None, or `<reason>: <message>`.
    """
    nothing = [None] * len(rows)
    images = map(StoredImage, rows.images, rows.formats or nothing, rows.heights or nothing, rows.widths or nothing)
    errors: list[str | None] = []
    for row, (image, source) in enumerate(zip(images, rows.sources or nothing, strict=True)):
        try:
            decoder.decode(image, pixels[row])
            if frames is not None:
                height, width = size_of(image)
                frames[row] = ImageFrames.of(width, height, source)
            errors.append(None)
        except ImageError as error:
            errors.append(f"{error.reason}: {error}")
        except Exception as error:  # noqa: BLE001  whatever one image does to its decoder, the other rows are scored
            errors.append(f"corrupt: {type(error).__name__}: {error}")
    return errors
