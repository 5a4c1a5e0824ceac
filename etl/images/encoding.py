"""An RGB image to its stored size, and to JPEG or PNG bytes; pure."""

from __future__ import annotations

import io

from PIL import Image

from .colours import WHITE
from .geometry import Placement

DEFAULT_JPEG_QUALITY = 90
# How many columns and rows share a colour: 4:2:0 is two and two, 4:2:2 two and one, 4:4:4 none.
SUBSAMPLINGS = ("4:2:0", "4:2:2", "4:4:4")
# Pillow's filters, the sharpest first; each averages over all source pixels that a stored one covers.
RESAMPLINGS = ("lanczos", "bicubic", "hamming", "bilinear", "box")


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
