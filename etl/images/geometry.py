"""How a source image is placed in the stored one; boxes follow the same numbers as the pixels."""

from __future__ import annotations

from dataclasses import dataclass

RESIZES = ("fit", "crop", "stretch", "none")

# What boxes are drawn on: found out for each image, the file's pixels, or the image as it is shown.
AUTO, FILE, UPRIGHT = DRAWN_ON = ("auto", "file", "upright")


@dataclass(frozen=True)
class Placement:
    """Where an upright source image lies in the stored image.

    A point (x, y) of the source, in pixels with the origin at the outer corner of the first pixel, lies at
    (x * scale_x + offset_x, y * scale_y + offset_y) of the stored image.
    """

    scaled_width: int  # Width of the resized source in pixels
    scaled_height: int  # Height of the resized source in pixels
    offset_x: int  # Pixels from the stored image's left edge to the resized source; negative when it is cropped
    offset_y: int  # The same from the top edge
    width: int  # Width of the stored image in pixels
    height: int  # Height of the stored image in pixels
    scale_x: float  # Stored pixels per source pixel, horizontally
    scale_y: float  # Stored pixels per source pixel, vertically


def place(resize: str, source_width: int, source_height: int, size: int) -> Placement:
    """Derives the placement of an upright source of the given size in pixels.

    `fit` scales until the longer side is `size` and pads the shorter one evenly; `crop` scales until the shorter side
    is `size` and cuts the longer one evenly; `stretch` scales each side to `size`; `none` keeps the source's own size.
    """
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
    scaled_width = max(1, round(source_width * ratio))
    scaled_height = max(1, round(source_height * ratio))
    return Placement(
        scaled_width,
        scaled_height,
        (width - scaled_width) // 2,
        (height - scaled_height) // 2,
        width,
        height,
        scaled_width / source_width,
        scaled_height / source_height,
    )
