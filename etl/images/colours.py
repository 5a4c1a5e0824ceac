"""Any mode and profile that Pillow reads, to 8-bit RGB; pure."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageOps

from ...errors import ImageError

WHITE = (255, 255, 255)
ALPHA_IGNORED = "alpha_ignored"

_PHOTOMETRIC = 262


def to_rgb(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Converts any mode to RGB: transparency over white, 16-bit and float samples scaled rather than clipped.

    An image that is transparent everywhere is shown as if it were opaque: `ALPHA_IGNORED` is in the notes.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image, ()
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        grey = _scale_samples(image)
        return (ImageOps.invert(grey) if _is_white_zero(image) else grey).convert("RGB"), ()
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        alpha = rgba.getchannel("A")
        if alpha.getextrema()[1] == 0:
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


def to_srgb(image: Image.Image) -> Image.Image:
    """Converts an image with an embedded ICC profile to sRGB; a profile that does not fit the image is ignored."""
    profile_bytes = image.info.get("icc_profile")
    if not profile_bytes or image.mode not in ("RGB", "CMYK", "L", "RGBA"):
        return image
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(profile_bytes))
        if "sRGB" in ImageCms.getProfileDescription(profile):
            return image
        mode = "RGBA" if image.mode == "RGBA" else "RGB"
        transform = ImageCms.buildTransform(profile, _srgb(), image.mode, mode)
        return _apply(image, transform)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return image


def _scale_samples(image: Image.Image) -> Image.Image:
    """Brings integer or float samples of more than 8 bits to 0..255.

    16-bit samples map 0..65535 to 0..255. The bounds of 32-bit integers and floats are unknown to the file, so that
    their own smallest and largest finite values become 0 and 255, unless they already lie within 0..255.
    """
    samples: Any = np.asarray(image)
    if image.mode.startswith("I;16") or (samples.dtype.kind in "iu" and _is_sixteen_bit(samples)):
        scaled = (samples.astype(np.uint32) + 128) // 257
        return Image.fromarray(scaled.astype(np.uint8), "L")
    samples = samples.astype(np.float64)
    finite = samples[np.isfinite(samples)]
    if finite.size == 0:
        raise ImageError("corrupt", "no sample of the image is a finite number")
    lowest, highest = float(finite.min()), float(finite.max())
    samples = np.nan_to_num(samples, nan=lowest, posinf=highest, neginf=lowest)
    if lowest < 0 or highest > 255 or (image.mode == "F" and highest <= 1):
        span = highest - lowest
        samples = (samples - lowest) * (255 / span) if span > 0 and math.isfinite(span) else np.zeros_like(samples)
    return Image.fromarray(np.rint(samples).clip(0, 255).astype(np.uint8), "L")


def _is_sixteen_bit(samples: Any) -> bool:
    return bool(samples.min() >= 0 and 255 < samples.max() <= 65535)


def _srgb() -> Any:
    return ImageCms.createProfile("sRGB")


def _apply(image: Image.Image, transform: Any) -> Image.Image:
    converted = ImageCms.applyTransform(image, transform)
    if converted is None:  # only an in-place transform gives nothing back
        raise ValueError("the ICC transform gave no image")
    return converted
