"""Any mode and profile that Pillow reads to 8-bit RGB, and RGB to its stored size and to JPEG or PNG bytes; pure."""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageOps

from ...errors import ImageError
from .geometry import Placement

WHITE = (255, 255, 255)
ALPHA_IGNORED = "alpha_ignored"
DARK_SAMPLES = "dark_samples"
PROFILE_IGNORED = "profile_ignored"
# Which samples of more than 8 bits become black and white: all that there may be, the image's own, or two numbers.
FULL, OWN = DEPTHS = ("full", "image")
Depth = str | tuple[float, float]

_BYTE, _SIXTEEN_BITS = 255, 65535
# Levels by which a profile may change greys and still be that of sRGB.
_NEAR = 2
# Pixels that are scaled at once; each takes 30 bytes, and those of a large image gigabytes.
_STRIP = 1_000_000
# An image in the lowest sixteenth of the range has 12 of 16 bits at most, and is black.
_DARK, _OVERSHOOT = 1 / 16, 1.05

_PHOTOMETRIC = 262


def to_rgb(image: Image.Image, depth: Depth = FULL) -> tuple[Image.Image, tuple[str, ...]]:
    """Converts any mode to RGB: transparency over white, 16-bit and float samples scaled rather than clipped."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image, ()
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        grey, notes = _scale_samples(image, depth)
        shown = (ImageOps.invert(grey) if _is_white_zero(image) else grey).convert("RGB")
        clear = image.info.get("transparency")
        if isinstance(clear, int):
            shown.paste(WHITE, mask=Image.fromarray(np.asarray(image) == clear))
        return shown, notes
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        alpha = rgba.getchannel("A")
        if alpha.getextrema()[1] == 0:  # transparent everywhere
            return rgba.convert("RGB"), (ALPHA_IGNORED,)
        canvas = Image.new("RGB", rgba.size, WHITE)
        canvas.paste(rgba, mask=alpha)
        return canvas, ()
    if image.mode == "LAB":
        transform = ImageCms.buildTransform(ImageCms.createProfile("LAB"), _srgb(), "LAB", "RGB")
        return _apply(image, transform), ()
    return image.convert("RGB"), ()


def _is_white_zero(image: Image.Image) -> bool:
    """Whether zero is white in a TIFF; Pillow inverts samples of up to 8 bits itself."""
    tags = getattr(image, "tag_v2", None)
    return tags is not None and tags.get(_PHOTOMETRIC) == 0


def to_srgb(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Converts an image with an embedded ICC profile to sRGB; ignores one that is unreadable or does not fit."""
    if "icc_profile" not in image.info:
        return image, ()
    try:
        data = image.info["icc_profile"] or b""
        if _is_srgb(data):
            return image, ()
        profile = ImageCms.ImageCmsProfile(io.BytesIO(data))
        if image.mode not in ("RGB", "CMYK", "L", "RGBA"):
            return image, (PROFILE_IGNORED,)
        mode = "RGBA" if image.mode == "RGBA" else "RGB"
        transform = ImageCms.buildTransform(profile, _srgb(), image.mode, mode)
        return _apply(image, transform), ()
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return image, (PROFILE_IGNORED,)


@lru_cache(maxsize=16)
def _is_srgb(profile: bytes) -> bool:
    """Whether a profile is sRGB by its name and by what it makes of greys: others are called linear sRGB."""
    read = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    if "sRGB" not in ImageCms.getProfileDescription(read):
        return False
    greys = np.repeat(np.array([[[55], [128], [200]]], np.uint8), 3, axis=2)
    try:
        shown = _apply(Image.fromarray(greys), ImageCms.buildTransform(read, _srgb(), "RGB", "RGB"))
    except ImageCms.PyCMSError:  # a profile of grey
        return True
    return int(np.abs(np.asarray(shown).astype(int) - greys).max()) <= _NEAR


def _scale_samples(image: Image.Image, depth: Depth) -> tuple[Image.Image, tuple[str, ...]]:
    """Brings integer or float samples of more than 8 bits to 0..255, and clips what is outside."""
    samples: Any = np.asarray(image)
    is_whole = samples.dtype.kind in "iu"
    finite = samples if is_whole else samples[np.isfinite(samples)]
    if finite.size == 0:
        raise ImageError("corrupt", "no sample of the image is a finite number")
    own = float(finite.min()), float(finite.max())
    whole = _whole_range(own, is_sixteen_bit=image.mode.startswith("I;16"), is_whole=is_whole)
    low, high = _range_of(depth, whole, own)
    span = high - low
    # Of 8 bits in wider samples an image may be as dark as any other. Where zero is white, the darkest is the largest.
    is_byte = depth == FULL and is_whole and whole is not None and whole[1] == _BYTE
    darkest = high - own[0] if _is_white_zero(image) else own[1] - low
    is_dark = depth != OWN and not is_byte and darkest < span * _DARK
    return Image.fromarray(_to_bytes(samples, low, high), "L"), (DARK_SAMPLES,) if is_dark else ()


def scale_colours(high_bytes: Image.Image, low_bytes: Image.Image, depth: Depth) -> tuple[Image.Image, tuple[str, ...]]:
    """Brings RGB or RGBA samples of 16 bits, whose two bytes are in two images, to 0..255, all colours alike."""
    rows = max(1, _STRIP // high_bytes.width)
    tops = range(0, high_bytes.height, rows)

    def strip(top: int) -> Any:
        box = (0, top, high_bytes.width, min(top + rows, high_bytes.height))
        return np.asarray(high_bytes.crop(box)).astype(np.uint16) << 8 | np.asarray(low_bytes.crop(box))

    ends = [(colours.min(), colours.max()) for colours in (strip(top)[..., :3] for top in tops)]
    own = float(min(least for least, _ in ends)), float(max(most for _, most in ends))
    full = 0.0, float(_SIXTEEN_BITS)
    low, high = _range_of(depth, full, own)
    is_dark = depth != OWN and own[1] - low < (high - low) * _DARK
    clear = high_bytes.info.get("transparency")
    image = Image.new("RGBA" if clear is not None else high_bytes.mode, high_bytes.size)
    for top in tops:
        samples = strip(top)
        scaled, alpha = _to_bytes(samples[..., :3], low, high), samples[..., 3:]
        if clear is not None:
            alpha = np.where((samples == np.asarray(clear)).all(axis=-1, keepdims=True), 0, _SIXTEEN_BITS)
        if alpha.shape[-1]:
            scaled = np.concatenate([scaled, _to_bytes(alpha, *full)], axis=-1)
        image.paste(Image.fromarray(scaled), (0, top))
    image.info = {name: value for name, value in high_bytes.info.items() if name != "transparency"}
    return image, (DARK_SAMPLES,) if is_dark else ()


def _range_of(depth: Depth, whole: tuple[float, float] | None, own: tuple[float, float]) -> tuple[float, float]:
    """Returns the samples that become black and white."""
    return ({FULL: whole or own, OWN: own}[depth]) if isinstance(depth, str) else depth


def _to_bytes(samples: Any, low: float, high: float) -> Any:
    """Scales samples so that two of them become 0 and 255, and clips what is outside."""
    span = high - low
    scaled = np.nan_to_num(samples.astype(np.float32), copy=False, nan=low, posinf=high, neginf=low)
    with np.errstate(over="ignore"):
        scaled -= low
        scaled *= _BYTE / span if span > 0 and math.isfinite(span) else 0
    return np.rint(scaled, out=scaled).clip(0, _BYTE, out=scaled).astype(np.uint8)


def _whole_range(own: tuple[float, float], *, is_sixteen_bit: bool, is_whole: bool) -> tuple[float, float] | None:
    """Returns the range that samples of such a file may have, floats with a slight overshoot; None if it is unknown."""
    lowest, highest = own
    if is_sixteen_bit:
        return 0.0, float(_SIXTEEN_BITS)
    tops, overshoot = ((_BYTE, _SIXTEEN_BITS), 1.0) if is_whole else ((1, _BYTE), _OVERSHOOT)
    top = next((top for top in tops if highest <= top * overshoot), None)
    # As far below zero as the overshoot is above, measured by the image's own highest sample.
    return None if top is None or lowest < (1 - overshoot) * highest else (0.0, float(top))


def _srgb() -> Any:
    return ImageCms.createProfile("sRGB")


def _apply(image: Image.Image, transform: Any) -> Image.Image:
    converted = ImageCms.applyTransform(image, transform)
    if converted is None:  # only an in-place transform gives nothing back
        raise ValueError("the ICC transform gave no image")
    return converted


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
    image: Image.Image, placement: Placement, fill: tuple[int, int, int] = WHITE, resample: str = RESAMPLINGS[0]
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
