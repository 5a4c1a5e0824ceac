"""Images made by code."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lakelens.etl.images.codec import decode_source
from lakelens.etl.images.colours import place_image
from lakelens.etl.images.geometry import place


def picture(seed: int = 0, width: int = 60, height: int = 40) -> Image.Image:
    """A smooth colourful image whose corners differ, so that a turn or flip shows."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, file_format: str = "JPEG", **options: Any) -> bytes:
    """An image file as bytes."""
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


_T = Image.Transpose
_TURNS = {2: _T.FLIP_LEFT_RIGHT, 3: _T.ROTATE_180, 4: _T.FLIP_TOP_BOTTOM, 5: _T.TRANSPOSE}
_TURNS |= {6: _T.ROTATE_90, 7: _T.TRANSVERSE, 8: _T.ROTATE_270}


def as_held(image: Image.Image, orientation: int) -> Image.Image:
    """The pixels that a camera writes of an upright picture when it is held so."""
    return image.transpose(_TURNS[orientation]) if orientation in _TURNS else image


def oriented(orientation: int) -> Image.Exif:
    """What a camera writes of how it was held: 1 to 8."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def write_image(path: Path, seed: int = 0, **options: Any) -> bytes:
    """Writes a JPEG, with its folders, and gives its bytes."""
    data = encoded(picture(seed, **options), quality=95)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return data


def decode(data: bytes, **options: Any) -> Image.Image:
    """The image of a file, as an ingest decodes it."""
    return decode_source(data, **options).image


def fit(image: Image.Image, size: int, resize: str = "fit", resample: str = "lanczos") -> Image.Image:
    """An image as an ingest scales it."""
    return place_image(image, place(resize, *image.size, size), resample=resample)
