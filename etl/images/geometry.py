"""How a source image is placed in the stored one; boxes follow the same numbers as the pixels."""

from __future__ import annotations

from dataclasses import dataclass

# fit: the longer side becomes `size`, and the shorter is padded. crop: the shorter does, and the longer is cut.
# stretch: both do. none: the source keeps its size.
RESIZES = ("fit", "crop", "stretch", "none")

# What boxes are drawn on: found out for each image, the file's pixels, or the image as it is shown.
AUTO, FILE, UPRIGHT = DRAWN_ON = ("auto", "file", "upright")


@dataclass(frozen=True)
class Placement:
    """Where an upright source image lies in the stored image: its x at x * scale_x + offset_x, y likewise."""

    scaled_width: int  # Width of the resized source in pixels
    scaled_height: int  # Height of the resized source in pixels
    offset_x: int  # Pixels from the stored image's left edge to the resized source; negative when it is cropped
    offset_y: int  # The same from the top edge
    width: int  # Width of the stored image in pixels
    height: int  # Height of the stored image in pixels
    scale_x: float  # Stored pixels per source pixel, horizontally
    scale_y: float  # Stored pixels per source pixel, vertically


def place(resize: str, source_width: int, source_height: int, size: int) -> Placement:
    """Derives the placement of an upright source of the given size in pixels."""
    if resize == "none":
        return Placement(source_width, source_height, 0, 0, source_width, source_height, 1.0, 1.0)
    if resize == "stretch":
        return Placement(size, size, 0, 0, size, size, size / source_width, size / source_height)
    if resize == "fit":
        return letterbox(source_width, source_height, size, size)
    return _scaled(source_width, source_height, size, size, max(size / source_width, size / source_height))


def letterbox(source_width: int, source_height: int, width: int, height: int) -> Placement:
    """Places a source as a whole, its sides in proportion, in the middle of an image of the given size in pixels."""
    return _scaled(source_width, source_height, width, height, min(width / source_width, height / source_height))


def _scaled(source_width: int, source_height: int, width: int, height: int, ratio: float) -> Placement:
    scaled_width, scaled_height = max(1, round(source_width * ratio)), max(1, round(source_height * ratio))
    offsets = (width - scaled_width) // 2, (height - scaled_height) // 2
    scales = scaled_width / source_width, scaled_height / source_height
    return Placement(scaled_width, scaled_height, *offsets, width, height, *scales)
