"""One source file to the bytes that a row stores; pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from PIL import Image

from ...errors import ImageError
from .codec import Decoded, decode_source
from .encoding import encode_jpeg, encode_png, place_image
from .geometry import Placement, place
from .recipe import Limits, Recipe


@dataclass(frozen=True)
class EncodedImage:
    """What a row keeps of one source file."""

    image: bytes  # The stored bytes; for `raw_rgb` height x width x 3 bytes, row by row
    format: str  # `jpeg`, `png` or `raw_rgb`
    height: int  # Height of the stored image in pixels
    width: int  # Width of the stored image in pixels
    content_hash: str  # SHA-256 of the source file, in hexadecimal
    orientation: int  # EXIF orientation of the source
    placement: Placement  # Where the upright source lies in the stored image
    source_width: int  # Width of the upright source in pixels
    source_height: int  # Height of the upright source in pixels
    decoded_width: int  # Width that the decoder gave, smaller than the source's when it decoded at a fraction
    decoded_height: int  # The same of the height
    notes: tuple[str, ...] = ()  # What was repaired or left out, as `Decoded.notes`


def make_stored_image(data: bytes, recipe: Recipe, limits: Limits) -> EncodedImage:
    """Decodes, places and encodes one source file.

    `original` keeps the file's own bytes when they are a JPEG or PNG that every decoder shows alike (RGB or grey, 8
    bits, upright, opaque); any other file becomes a PNG of the source's size, so that no reader has to know EXIF.
    """
    if len(data) > limits.max_bytes:
        raise ImageError(
            "too_many_bytes", f"{len(data)} bytes are more than the {limits.max_bytes} that a file may have"
        )
    resize = recipe.applied_resize
    target_size = None if resize == "none" else recipe.size
    decoded = decode_source(data, target_size=target_size, max_pixels=limits.max_pixels, depth=recipe.depth)
    placement = place(resize, decoded.width, decoded.height, recipe.size)
    image = place_image(decoded.image, placement, resample=recipe.resample)
    stored, stored_format = _encode(image, decoded, data, recipe)
    return EncodedImage(
        image=stored,
        format=stored_format,
        height=image.height,
        width=image.width,
        content_hash=hashlib.sha256(data).hexdigest(),
        orientation=decoded.orientation,
        placement=placement,
        source_width=decoded.width,
        source_height=decoded.height,
        decoded_width=decoded.image.width,
        decoded_height=decoded.image.height,
        notes=decoded.notes,
    )


def _encode(image: Image.Image, decoded: Decoded, data: bytes, recipe: Recipe) -> tuple[bytes, str]:
    if recipe.store == "raw_rgb":
        return image.tobytes(), "raw_rgb"
    if recipe.store == "jpeg":
        return encode_jpeg(image, recipe.quality, recipe.subsampling), "jpeg"
    if decoded.is_plain:
        return data, decoded.file_format.lower()
    return encode_png(image), "png"
