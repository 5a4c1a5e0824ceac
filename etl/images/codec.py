"""Bytes of any image file to an upright RGB image, by Pillow, with repairs of metadata and missing ends; pure."""

from __future__ import annotations

import importlib.util
import io
import re
import struct
import sys
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import Image, ImageFile, UnidentifiedImageError

from ...errors import ImageError
from .colours import FULL, Depth, scale_colours, to_rgb, to_srgb

METADATA_SKIPPED = "metadata_skipped"
END_MARKER_MISSING = "end_marker_missing"

_PNG = b"\x89PNG\r\n\x1a\n"
# A chunk whose name begins with a small letter is not needed for the pixels; but transparency shows in them, and the
# orientation of an EXIF block that is whole. https://www.w3.org/TR/png-3/#5Chunk-naming-conventions
_ANCILLARY, _TRANSPARENCY, _EXIF = 0x20, b"tRNS", b"eXIf"
_CHUNK = struct.Struct(">I4s")
_CHECKSUM_BYTES = 4
_JPEG, _END = b"\xff\xd8", b"\xff\xd9"
_FILL = {126, 127, 128, 129}  # the middle of the range, tinted where rows share their colours


def repaired(data: bytes) -> tuple[bytes, str] | None:
    """Takes away what a PNG does not need for its pixels, or adds the end marker of a JPEG with all of its rows.

    Returns the bytes and `METADATA_SKIPPED` or `END_MARKER_MISSING`; None for other files.
    """
    if data.startswith(_PNG):
        return _without_metadata(data), METADATA_SKIPPED
    if data.startswith(_JPEG) and not data.endswith(_END):
        ended = data + (_END[1:] if data.endswith(_END[:1]) else _END)
        return (ended, END_MARKER_MISSING) if _has_all_rows(ended) else None
    return None


def _without_metadata(data: bytes) -> bytes:
    """Leaves out chunks of metadata; from a chunk on that is cut off, everything stays."""
    kept, position = [data[: len(_PNG)]], len(_PNG)
    while position + _CHUNK.size <= len(data):
        length, kind = _CHUNK.unpack_from(data, position)
        end = position + _CHUNK.size + length + _CHECKSUM_BYTES
        is_whole = end <= len(data)
        checksum = data[end - _CHECKSUM_BYTES : end]
        is_exif = kind == _EXIF and zlib.crc32(data[position + 4 : end - 4]).to_bytes(4, "big") == checksum
        if not kind[0] & _ANCILLARY or kind == _TRANSPARENCY or is_exif or not is_whole:
            kept.append(data[position:end])
        position = end
    kept.append(data[position:])
    return b"".join(kept)


def _ends_in_fill(image: Image.Image) -> bool:
    """Whether the last pixel is the grey that libjpeg fills up missing blocks with."""
    last = image.crop((image.width - 1, image.height - 1, image.width, image.height))
    value = (last.convert("YCbCr") if last.mode == "RGB" else last).getpixel((0, 0))
    return set(value if isinstance(value, tuple) else (value,)) <= _FILL


def _has_all_rows(data: bytes) -> bool | None:
    """Whether a JPEG has all of its rows; None where simplejpeg is missing, which passes on libjpeg's warnings."""
    try:
        import simplejpeg
    except ImportError:
        return None
    try:
        simplejpeg.decode_jpeg(data, strict=True)
    except ValueError as error:  # the other warnings are of metadata
        return "premature end" not in str(error).lower()
    return True


_HAS_HEIF = importlib.util.find_spec("pillow_heif") is not None
if _HAS_HEIF:
    import pillow_heif

    pillow_heif.register_heif_opener()

# Formats whose decoder is Pillow's own. EPS is left out because it runs Ghostscript on the file; IPTC because it opens
# what it holds as any format, EPS too; WMF, MPEG, HDF5, GRIB and BUFR because Pillow only recognises them. Pillow tries
# them in this order: the two most common formats are first.
FORMATS = (
    "JPEG", "PNG",
    # Pillow knows it since 11.3, and opens nothing at all when the list has a format that it does not know.
    *(["AVIF"] if importlib.util.find_spec("PIL.AvifImagePlugin") else []),
    *(["HEIF"] if _HAS_HEIF else []),
    "BLP", "BMP", "CUR", "DCX", "DDS", "DIB", "FITS", "FLI", "FTEX", "GBR", "GIF", "ICNS", "ICO", "IM", "IMT",
    "JPEG2000", "MCIDAS", "MSP", "PCD", "PCX", "PIXAR", "PPM", "PSD", "QOI", "SGI", "SPIDER", "SUN",
    "TGA", "TIFF", "WEBP", "XBM", "XPM", "XVTHUMB",
)  # fmt: skip

DEFAULT_MAX_PIXELS = 100_000_000

_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TURNED = (5, 6, 7, 8)
# Their first bytes are long enough to identify the format: a file that begins so and does not open is damaged.
_SIGNED = (
    "PNG", "JPEG", "GIF", "TIFF", "WEBP", "JPEG2000", "PSD", "DDS", "QOI",
    *(name for name in ("AVIF", "HEIF") if name in FORMATS),
)  # fmt: skip
_SIGNATURE_BYTES = 16
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_NUMBER = re.compile(r"\d+")
_SIZED_BY_HEADER = ("JPEG", "MPO", "PNG")
# libjpeg's scaled decoding averages blocks; below twice the target, resampling can no longer hide its aliasing.
_DRAFT_MARGIN = 2

# The byte of a PNG that gives the depth of its samples.
_PNG_DEPTH, _BYTE = 24, 8
# Tags of a TIFF, and the value of `PlanarConfiguration` for separate planes.
_PLANES, _APART, _BITS, _PHOTOMETRIC = 284, 2, 258, 262
_UNSUPPORTED = ("unsupported", "unknown pixel mode", "unknown raw mode")

# Pillow keeps the high byte of a sample of 16-bit colour; these raw modes give the low one.
_LOW_BYTES = {
    f"{mode};16{order}": f"{mode};16{other}"
    for mode in ("RGB", "RGBA", "RGBX")
    for order, other in (("B", "L"), ("L", "B"), ("N", "B" if sys.byteorder == "little" else "L"))
}
# Grey with alpha has both bytes of both in the four of RGBA.
_GREY_ALPHA, _BOTH_BYTES = "LA;16B", "RGBA"


class _Loaded(NamedTuple):
    """The pixels of a file."""

    image: Image.Image
    size: tuple[int, int]  # Before any reduction
    file_format: str  # The format that the bytes are in
    tiff_orientation: int  # Which a TIFF had before Pillow read its pixels; 1 for other formats, which keep their tag
    low_bytes: Image.Image | None = None  # Of samples of 16-bit colour, whose high ones `image` has


@dataclass(frozen=True)
class Decoded:
    """One decoded source image."""

    image: Image.Image  # The upright RGB image, smaller than the source when it was decoded at a fraction of its size
    width: int  # Width of the upright source in pixels
    height: int  # Height of the upright source in pixels
    orientation: int  # EXIF orientation of the file, 1-8; 1 when it has none
    file_format: str  # Pillow's name of the format that the bytes are in, whatever the file is called
    mode: str  # Pillow's name of the pixel format before the conversion to RGB
    # Whether the file itself is a JPEG or PNG that every decoder shows alike: opaque 8-bit RGB or grey, upright, one
    # frame, without its own colour profile
    is_plain: bool
    # What was repaired or left out: names of `repairs` and `colours`
    notes: tuple[str, ...] = ()


def decode_source(
    data: bytes, *, target_size: int | None = None, max_pixels: int = DEFAULT_MAX_PIXELS, depth: Depth = FULL
) -> Decoded:
    """Decodes an image file to upright RGB: the first frame of an animation, transparency over white, in sRGB."""
    (image, size, file_format, tiff_orientation, low_bytes), notes = _load_repaired(data, target_size, max_pixels)
    remaining = orientation_of(image)
    # Pillow turns a TIFF's pixels as it loads them, and then takes the tag away.
    orientation = remaining if remaining in _UPRIGHT else tiff_orientation
    mode = image.mode
    is_plain = (
        file_format in ("JPEG", "PNG")
        and mode in ("RGB", "L")
        and not notes
        and (file_format == "JPEG" or data[_PNG_DEPTH] == _BYTE)
        and orientation not in _UPRIGHT
        and not _needs_care(image)
    )
    try:
        of_colours: tuple[str, ...] = ()
        if low_bytes is not None:
            image, of_colours = scale_colours(image, low_bytes, depth)
        converted, of_profile = to_srgb(image)
        shown, of_samples = to_rgb(converted, depth)
        image = upright(shown, remaining)
    except ImageError:
        raise
    except Exception as error:  # palettes and samples that only the conversion looks at are broken in as many ways
        raise _decoding_error(error) from error
    width, height = (size[1], size[0]) if remaining in _TURNED else size
    notes += of_profile + of_colours + of_samples
    return Decoded(image, width, height, orientation, file_format, mode, is_plain, notes)


def read_size(data: bytes) -> tuple[int, int]:
    """Reads the height and width that an image file decodes to, from its header if it has them."""
    try:
        with _opened(data, DEFAULT_MAX_PIXELS) as image:
            if image.format in _SIZED_BY_HEADER:
                turned = orientation_of(image) in _TURNED
                return (image.width, image.height) if turned else (image.height, image.width)
    except ImageError:
        pass  # which `decode_source` repairs, or names
    decoded = decode_source(data)
    return decoded.height, decoded.width


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """Turns and flips an image so that EXIF `orientation` 1-8 shows as it was taken; other values change nothing."""
    method = _UPRIGHT.get(orientation)
    return image if method is None else image.transpose(method)


def _load_repaired(data: bytes, target_size: int | None, max_pixels: int) -> tuple[_Loaded, tuple[str, ...]]:
    """Reads the pixels, of a repaired file if the file itself does not decode; and what was repaired."""
    try:
        return _load(data, target_size, max_pixels), ()
    except ImageError as error:
        found = repaired(data) if error.reason in ("corrupt", "truncated") else None
        if found is None:
            raise
        try:
            return _load(found[0], target_size, max_pixels), found[1:]
        except ImageError:
            raise error from None


def _load(data: bytes, target_size: int | None, max_pixels: int) -> _Loaded:
    """Reads the pixels."""
    with _opened(data, max_pixels) as image:
        file_format = image.format or ""
        size = image.size
        tiff_orientation = orientation_of(image) if file_format == "TIFF" else 1
        rawmode = _rawmode_of(image)
        if file_format == "TIFF":
            _require_readable_planes(image)
        if target_size is not None and file_format in ("JPEG", "MPO"):
            side = target_size * _DRAFT_MARGIN
            image.draft(None, (side, side))  # None keeps the mode
            image.load()
        else:
            image.load()
            # Icons and turned TIFFs know their size only now.
            _check_pixels(image, max_pixels)
            size = image.size
        if file_format in ("JPEG", "MPO") and _ends_in_fill(image) and _has_all_rows(data) is False:
            raise ImageError("truncated", "the JPEG lacks rows, although it has an end marker")
        if rawmode not in (*_LOW_BYTES, _GREY_ALPHA):
            return _Loaded(image, size, file_format, tiff_orientation)
    with _opened(data, max_pixels) as other:
        other.tile = [_with_rawmode(tile) for tile in other.tile]
        other.load()
    if rawmode == _GREY_ALPHA:
        _, grey_low, _, alpha_low = other.split()
        low = Image.merge("RGBA", (grey_low, grey_low, grey_low, alpha_low))
        return _Loaded(image, size, file_format, tiff_orientation, low)
    return _Loaded(image, size, file_format, tiff_orientation, other)


def _require_readable_planes(image: ImageFile.ImageFile) -> None:
    """Refuses TIFFs with a plane for each colour that Pillow reads wrongly: 16 bits as 8, and white as black."""
    tags: Any = getattr(image, "tag_v2", {})
    if tags.get(_PLANES) == _APART and (max(tags.get(_BITS, (1,))) > _BYTE or tags.get(_PHOTOMETRIC) == 0):
        raise ImageError(
            "unsupported",
            "a TIFF with a plane for each colour (PlanarConfiguration 2); save it with interleaved colours",
        )


def _rawmode_of(image: ImageFile.ImageFile) -> str:
    """Returns Pillow's name for the bytes of an image's samples; empty for a decoder that has none."""
    args = image.tile[0][3] if image.tile else None
    name = args[0] if isinstance(args, tuple) and args else args
    return name if isinstance(name, str) else ""


def _with_rawmode(tile: Any) -> Any:
    """Puts the raw mode of the low bytes into the arguments of a tile's decoder."""
    args = tile[3]  # `tile.args` since Pillow 10.4, a plain tuple before
    name, *others = args if isinstance(args, tuple) else (args,)
    name = _LOW_BYTES.get(name, _BOTH_BYTES)
    changed = (*tile[:3], (name, *others) if isinstance(args, tuple) else name)
    return changed if type(tile) is tuple else type(tile)(*changed)


@contextmanager
def _opened(data: bytes, max_pixels: int) -> Iterator[ImageFile.ImageFile]:
    """Opens an image file; whatever a broken one leads Pillow to in here becomes an ImageError."""
    if not data:
        raise ImageError("empty", "the file has no bytes")
    with warnings.catch_warnings(), _pillow_allows(max_pixels):
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            _check_pixels(image, max_pixels)
            yield image
        except ImageError:
            raise
        except Image.DecompressionBombError as error:
            found = _NUMBER.search(str(error))  # of another limit than ours, Pillow's own
            raise _too_many_pixels(found[0] if found else "these", max_pixels) from error
        except UnidentifiedImageError as error:
            raise _unidentified(data) from error
        except Exception as error:  # decoders raise whatever a broken file leads them to
            raise _decoding_error(error) from error


@contextmanager
def _pillow_allows(pixels: int) -> Iterator[None]:
    """Raises Pillow's own limit where it would win: Pillow refuses an image of more than twice its number."""
    before = Image.MAX_IMAGE_PIXELS
    if before is None or pixels <= 2 * before:
        yield
        return
    Image.MAX_IMAGE_PIXELS = pixels
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _unidentified(data: bytes) -> ImageError:
    """Tells a damaged image of a known format, and one of a format that needs another package, from no image at all."""
    first = data[:_SIGNATURE_BYTES]
    for name in _SIGNED:
        factory, accepts = Image.OPEN[name]
        if accepts is None or accepts(first) is not True:
            continue
        try:
            factory(io.BytesIO(data), "")
        except Exception as error:  # noqa: BLE001  decoders raise whatever a broken file leads them to
            return _decoding_error(error)
    if not _HAS_HEIF and first[4:8] == b"ftyp" and first[8:12] in _HEIF_BRANDS:
        return ImageError("unsupported", "HEIC: pip install 'lakelens[heif]' where Spark's Python workers run")
    return ImageError("not_an_image", "no decoder knows these bytes")


def _decoding_error(error: Exception) -> ImageError:
    if isinstance(error, MemoryError):
        return ImageError("out_of_memory", "decoding took more memory than one image may")
    message = f"{type(error).__name__}: {error}"
    lowered = str(error).lower()
    if "truncated" in lowered or isinstance(error, EOFError):
        return ImageError("truncated", message)
    if isinstance(error, NotImplementedError) or any(word in lowered for word in _UNSUPPORTED):
        return ImageError("unsupported", message)
    return ImageError("corrupt", message)


def _check_pixels(image: Image.Image, max_pixels: int) -> None:
    if image.width < 1 or image.height < 1:
        raise ImageError("corrupt", f"the image is {image.width} x {image.height} pixels")
    if image.width * image.height > max_pixels:
        raise _too_many_pixels(f"{image.width} x {image.height}", max_pixels)


def _too_many_pixels(found: str, max_pixels: int) -> ImageError:
    return ImageError(
        "too_many_pixels", f"{found} pixels are more than the {max_pixels} that one may have (max_pixels)"
    )


def _needs_care(image: Image.Image) -> bool:
    """Whether a decoder that ignores transparency, profiles and later frames would show something else."""
    info = image.info
    return "transparency" in info or bool(info.get("icc_profile")) or getattr(image, "n_frames", 1) > 1


def orientation_of(image: Image.Image) -> int:
    """Reads the EXIF orientation that remains to be applied to an image with loaded pixels; 1 by default."""
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # noqa: BLE001  a broken EXIF block must not lose an image whose pixels are whole
        return 1
