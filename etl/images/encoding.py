"""An RGB image to its stored size, and to JPEG or PNG bytes; pure."""

from __future__ import annotations

import io

from PIL import Image

from ...errors import InvalidArgumentError
from .colours import WHITE
from .geometry import RESIZES, Placement, place

DEFAULT_JPEG_QUALITY = 90
# A square of it has the pixels that one source may have by default; beyond, no decoding stays within its memory.
LARGEST_SIZE = 10_000
# How many columns and rows share a colour: 4:2:0 is two and two, 4:2:2 two and one, 4:4:4 none.
SUBSAMPLINGS = ("4:2:0", "4:2:2", "4:4:4")
# Pillow's filters, the sharpest first; each averages over all source pixels that a stored one covers.
RESAMPLINGS = ("lanczos", "bicubic", "hamming", "bilinear", "box")


def fit(
    image: Image.Image,
    size: int,
    resize: str = "fit",
    fill: tuple[int, int, int] = WHITE,
    resample: str = RESAMPLINGS[0],
) -> Image.Image:
    """Scales an RGB image to `size` x `size` pixels.

    Args:
        image: An RGB image.
        size: Side of the result in pixels.
        resize: `fit` pads the shorter side, `crop` cuts the longer one, `stretch` changes the aspect, `none` keeps the
            image as it is.
        fill: Colour of the padding, white as behind transparency.
        resample: The filter: `lanczos`, `bicubic`, `hamming`, `bilinear` or `box`.

    Raises:
        InvalidArgumentError: If `size` is not a positive number, `resize` not one of the four, or `resample` no filter.
    """
    check_size(size)
    check_resize(resize)
    check_resample(resample)
    return place_image(image, place(resize, image.width, image.height, size), fill, resample)


def encode_jpeg(image: Image.Image, quality: int = DEFAULT_JPEG_QUALITY, subsampling: str = SUBSAMPLINGS[0]) -> bytes:
    """Encodes an RGB image as JPEG with the standard's own Huffman tables."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    return buffer.getvalue()


def encode_png(image: Image.Image) -> bytes:
    """Encodes an RGB image as PNG, every pixel exactly."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def check_size(size: int) -> None:
    """Checks a target size.

    Raises:
        InvalidArgumentError: If it is not a whole number from 1 to `LARGEST_SIZE`.
    """
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_SIZE:
        raise InvalidArgumentError(
            f"size = {size!r}: the side of a stored image is a whole number of pixels from 1 to {LARGEST_SIZE}; "
            "store='original' keeps the images as they are"
        )


def check_resize(resize: str) -> None:
    """Checks the name of a resize method.

    Raises:
        InvalidArgumentError: If it is not one of `geometry.RESIZES`.
    """
    if resize not in RESIZES:
        raise InvalidArgumentError(f"resize = {resize!r} is not one of {', '.join(RESIZES)}")


def check_resample(resample: str) -> None:
    """Checks the name of a filter.

    Raises:
        InvalidArgumentError: If it is not one of `RESAMPLINGS`.
    """
    if resample not in RESAMPLINGS:
        raise InvalidArgumentError(f"resample = {resample!r} is not one of {', '.join(RESAMPLINGS)}")


def place_image(
    image: Image.Image,
    placement: Placement,
    fill: tuple[int, int, int] = WHITE,
    resample: str = RESAMPLINGS[0],
) -> Image.Image:
    """Scales an RGB image with a filter and lays it on a canvas of `fill`, as `placement` says."""
    scaled_size = (placement.scaled_width, placement.scaled_height)
    if image.size != scaled_size:
        image = image.resize(scaled_size, Image.Resampling[resample.upper()], reducing_gap=3.0)
    if scaled_size == (placement.width, placement.height):
        return image
    canvas = Image.new("RGB", (placement.width, placement.height), fill)
    canvas.paste(image, (placement.offset_x, placement.offset_y))
    return canvas
