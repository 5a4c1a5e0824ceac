"""The two frames of a box, a stored image and the file that it was made from, and the way between them; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import ImageError
from ..images.geometry import RESIZES, Placement, place
from .boxes import Coordinates, clip, turn_back, turn_upright, upright_size


class SourceFile(NamedTuple):
    """What a row keeps of its file, so that boxes find back: the column `source`."""

    width: int  # Width of the upright image in pixels, before it was resized
    height: int  # Height of the upright image in pixels
    orientation: int  # EXIF orientation of the file; values other than 1-8 mean 1
    resize: str  # How it was placed in the stored image: `fit`, `crop`, `stretch` or `none`

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the upright image."""
        return self.width, self.height


@dataclass(frozen=True)
class ImageFrames:
    """A stored image and its file."""

    width: int  # Width of the stored image in pixels
    height: int  # Height of the stored image in pixels
    # Its file; None if the table does not record it, and then the stored image is the source
    source: SourceFile | None = None

    @classmethod
    def of(cls, width: int, height: int, source: Mapping[str, Any] | None) -> ImageFrames:
        """Takes the size of a stored image, and the value of its row's column `source`."""
        if source is None or all(value is None for value in source.values()):
            return cls(width, height)
        found = SourceFile(**{name: source[name] for name in SourceFile._fields})
        is_known = None not in found and found.resize in RESIZES and min(found.size) > 0
        if not is_known or (width, height) != (found.size if found.resize == "none" else (width, width)):
            raise ImageError(
                "bad_source",
                f"column 'source' has {dict(source)}, which an ingest does not write for an image of {width} x "
                f"{height} pixels; ingest the file again",
            )
        return cls(width, height, found)

    def to_source(self, coordinates: Coordinates) -> Coordinates:
        """Carries boxes from the stored image to the pixels of its file, cut at the edges of both.

        If the decoder had reduced a JPEG to 1/2, 1/4 or 1/8, edges are off by less than 2, 4 or 8 pixels of the file.
        """
        inside = clip(coordinates, (self.width, self.height))
        if self.source is None:
            return inside
        source = self.source
        upright = unplaced(inside, place(source.resize, *source.size, self.width))
        file_size = upright_size(source.orientation, source.size)
        return clip(turn_back(upright, source.orientation, source.size), file_size)

    def to_stored(self, coordinates: Coordinates) -> Coordinates:
        """Carries boxes of the file, float64 [n, 4], to the stored image; the inverse of `to_source`."""
        if self.source is None:
            return coordinates
        source = self.source
        upright = turn_upright(coordinates, source.orientation, upright_size(source.orientation, source.size))
        scale, offset = _numbers(place(source.resize, *source.size, self.width))
        return upright * scale + offset


def unplaced(coordinates: Coordinates, placement: Placement) -> Coordinates:
    """Carries boxes, float64 [n, 4], from an image back to the image that was placed in it."""
    scale, offset = _numbers(placement)
    return (coordinates - offset) / scale


def _numbers(placement: Placement) -> tuple[Coordinates, Coordinates]:
    """Returns scale and offset of the four corners."""
    scale = np.array([placement.scale_x, placement.scale_y] * 2, np.float64)
    return scale, np.array([placement.offset_x, placement.offset_y] * 2, np.float64)
