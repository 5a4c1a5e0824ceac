"""The one decoder of stored rows, for feed, scoring and profile: from a row's bytes to the pixels that a model takes.

simplejpeg decodes JPEG into the caller's memory, in a fifth less time than TensorFlow; Pillow gives the same pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from ...errors import ImageError
from ..model import schema
from .codec import DEFAULT_MAX_PIXELS, Decoded, decode_source, read_size
from .geometry import letterbox

# The form whose bytes are the pixels themselves, rows of RGB triples from the top.
RAW_RGB = "raw_rgb"
CHANNELS = 3
# Pillow's name for the pixel format, by the number of channels.
MODES = {1: "L", CHANNELS: "RGB"}

_WHOLE = (int, np.integer)
_WHITE = 255  # as an ingest fills up
# JPEG markers: start of a file, of the segments before the picture's own, and those that change how it is shown.
_JPEG = b"\xff\xd8"
_MARKER = 0xFF
_SEGMENTS_BEFORE_FRAME = frozenset({0xDB, 0xC4, 0xDD, 0xFE, *range(0xE0, 0xF0)})
_TELLING_SEGMENTS = ((0xE1, b"Exif\0"), (0xE1, b"http://ns.adobe.com/xap/1.0/\0"), (0xE2, b"ICC_PROFILE\0"))
# From the others simplejpeg makes RGB that is a level off Pillow's.
_PLAIN_COLOURS = ("YCbCr", "Gray", "RGB")

Pixels: TypeAlias = npt.NDArray[np.uint8]
Bytes: TypeAlias = "bytes | bytearray | memoryview"


class StoredImage(NamedTuple):
    """What a row stores of an image."""

    data: Bytes | None  # The stored bytes; None is null
    format: str | None = None  # `jpeg`, `png`, `raw_rgb` or another encoded form; None for any encoded form
    height: int | None = None  # Height in pixels, which `raw_rgb` needs
    width: int | None = None  # Width in pixels, which `raw_rgb` needs

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> StoredImage:
        """Takes the columns of an image table; all may be absent."""
        return cls(*(row.get(name) for name in (schema.IMAGE, schema.FORMAT, schema.HEIGHT, schema.WIDTH)))

    @property
    def is_raw(self) -> bool:
        """Whether the bytes are pixels."""
        return self.format == RAW_RGB


@cache
def simplejpeg_works() -> bool:
    """Returns whether simplejpeg is installed and can be loaded."""
    try:
        import simplejpeg  # noqa: F401
    except ImportError:
        return False
    return True


@dataclass(frozen=True)
class PixelDecoder:
    """Decodes stored images into arrays."""

    # Whether an image of another size is resized, bilinear with antialiasing; else that is an error
    resize: bool = True
    simplejpeg: bool = field(default_factory=simplejpeg_works)  # Whether simplejpeg decodes JPEG
    # Whether a resized image keeps its proportions, in the middle of white; else each side is scaled
    letterbox: bool = False

    def decode(self, image: StoredImage, pixels: Pixels) -> None:
        """Decodes an image into `pixels`: [height, width, channels], of 3 channels or of 1 (grey)."""
        data = _present(image)
        try:
            if image.is_raw:
                self._fit(pixels, _raw_pixels(data, image))
            elif not (self.simplejpeg and data[:2] == _JPEG and self._with_simplejpeg(pixels, data)):
                self._fit(pixels, np.asarray(decode_source(bytes(data)).image))
        except MemoryError as error:
            raise ImageError("out_of_memory", f"decoding took more memory than there is ({error})") from error

    def _fit(self, pixels: Pixels, whole: Pixels) -> None:
        """Copies an RGB image to where it belongs, made grey and resized if need be."""
        if whole.shape == pixels.shape:
            pixels[...] = whole
            return
        height, width, channels = pixels.shape
        if not self.resize and whole.shape[:2] != (height, width):
            raise ImageError(
                "size", f"it is {whole.shape[0]} x {whole.shape[1]} pixels; resize all images with image_size"
            )
        fitted = Image.fromarray(whole)
        if fitted.mode != MODES[channels]:
            fitted = fitted.convert(MODES[channels])
        if fitted.size != (width, height):
            place = letterbox(*fitted.size, width, height) if self.letterbox else None
            scaled = (place.scaled_width, place.scaled_height) if place is not None else (width, height)
            fitted = fitted.resize(scaled, Image.Resampling.BILINEAR)
            if place is not None and scaled != (width, height):
                pixels[...] = _WHITE
                left, top = place.offset_x, place.offset_y
                pixels = pixels[top : top + scaled[1], left : left + scaled[0]]
        pixels[...] = np.asarray(fitted).reshape(pixels.shape)

    def _with_simplejpeg(self, pixels: Pixels, data: Bytes) -> bool:
        """Decodes a JPEG; False leaves it to Pillow: another form of colour, one to turn, or a bad file."""
        import simplejpeg

        if needs_care(data):
            return False
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
            if colours not in _PLAIN_COLOURS:
                return False
            if (height, width, CHANNELS) == pixels.shape:
                simplejpeg.decode_jpeg(data, "RGB", buffer=pixels)
                return True
            if not self.resize or height * width > DEFAULT_MAX_PIXELS:
                return False
            whole = simplejpeg.decode_jpeg(data, "RGB")
        except ValueError:
            return False
        self._fit(pixels, whole)
        return True


def decode_image(image: StoredImage, *, target_size: int | None = None) -> Decoded:
    """Decodes a stored image for Pillow, at its own size, or at a fraction of it that suits `target_size`."""
    data = _present(image)
    if not image.is_raw:
        return decode_source(bytes(data), target_size=target_size)
    pixels = _raw_pixels(data, image)
    return Decoded(Image.fromarray(pixels), pixels.shape[1], pixels.shape[0], 1, RAW_RGB, "RGB", is_plain=True)


def size_of(image: StoredImage) -> tuple[int, int]:
    """Finds the height and width that a stored image decodes to: the row's own of pixels, else those of the file."""
    data = _present(image)
    if image.is_raw:
        height, width, _ = _raw_pixels(data, image).shape
        return height, width
    return read_size(bytes(data))


def _present(image: StoredImage) -> Bytes:
    if image.data is None:
        raise ImageError("null", "the row has no image")
    return image.data


def _raw_pixels(data: Bytes, image: StoredImage) -> Pixels:
    height, width = image.height, image.width
    if not (isinstance(height, _WHOLE) and isinstance(width, _WHOLE) and height > 0 and width > 0):
        raise ImageError(
            "wrong_size", f"raw_rgb needs the row's height and width in pixels, they are {height}, {width}"
        )
    if len(data) != height * width * CHANNELS:
        raise ImageError(
            "wrong_size",
            f"{len(data)} bytes, but {height} x {width} raw_rgb pixels are {height * width * CHANNELS} bytes",
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(height, width, CHANNELS)


def needs_care(data: Bytes) -> bool:
    """Returns whether a JPEG may be turned by EXIF or XMP or has a colour profile, which Pillow's way applies."""
    # The segments before the picture's frame are in the order of ITU T.81 annex B; a marker may have fill bytes before.
    offset, end = 2, len(data)
    while offset + 4 <= end and data[offset] == _MARKER:
        marker = data[offset + 1]
        if marker == _MARKER:
            offset += 1
            continue
        if marker not in _SEGMENTS_BEFORE_FRAME:
            break
        for kind, name in _TELLING_SEGMENTS:
            if marker == kind and data[offset + 4 : offset + 4 + len(name)] == name:
                return True
        offset += 2 + (data[offset + 2] << 8 | data[offset + 3])
    return False
