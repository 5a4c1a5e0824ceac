"""Stored rows to pixels, in threads: JPEG by simplejpeg straight into the batch, everything else by Pillow.

simplejpeg and Pillow give the same pixels for the same JPEG, to the bit; simplejpeg takes a fifth less processor time
than TensorFlow's decoder, which also needs a copy into the batch. Both let go of the interpreter's lock meanwhile.
"""

from __future__ import annotations

import importlib.util
import io
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import BadRowError, ImageError, MissingDependencyError
from .buffers import BatchBuffers

if TYPE_CHECKING:
    from .stored import StoredBatch

logger = logging.getLogger(__name__)

CHANNELS = 3
# Below twice the size that is asked for, resampling no longer hides the aliasing of libjpeg's scaled decoding.
_SCALED_MARGIN = 2
_REMEMBERED_ROWS = 100
# Rows that are worth a task of their own.
_ROWS_PER_TASK = 4
# JPEG markers: start of a file, of the segments before the picture's own, and those that change how it is shown.
_JPEG = b"\xff\xd8"
_MARKER = 0xFF
_SEGMENTS_BEFORE_FRAME = frozenset({0xDB, 0xC4, 0xDD, 0xFE, *range(0xE0, 0xF0)})
_TELLING_SEGMENTS = ((0xE1, b"Exif\0"), (0xE1, b"http://ns.adobe.com/xap/1.0/\0"), (0xE2, b"ICC_PROFILE\0"))
# From the others simplejpeg makes RGB that is a level off Pillow's.
_PLAIN_COLOURS = ("YCbCr", "Gray", "RGB")

Pixels = npt.NDArray[np.uint8]


@dataclass
class SkippedRows:
    """The bad rows that a feed has given weight 0 to, in this process.

    Attributes:
        count: How many, each time that they were met.
        first: What the first of them were, with the reason.
    """

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, message: str) -> None:
        """Counts one row."""
        self.count += 1
        if len(self.first) < _REMEMBERED_ROWS:
            self.first.append(message)

    def refuse(self, message: str, policy: str) -> None:
        """Does with a bad row what the policy says: `error` raises, `skip` counts it and says so.

        Raises:
            BadRowError: If the policy is `error`.
        """
        if policy == "error":
            raise BadRowError(f"{message}; repair the row, or feed without it: bad_rows='skip'")
        self.add(message)
        logger.warning("skipped: %s", message)


@dataclass(frozen=True)
class Decoding:
    """How rows are decoded.

    Attributes:
        size: Height and width in pixels of every image that comes out.
        stored: Height and width in pixels of the images that are stored as pixels; None if no row tells it.
        resize: Whether images of another size are resized; else they are bad rows.
        policy: `error` raises at a bad row, `skip` gives it zeros and weight 0.
        fast: Whether JPEG is decoded with libjpeg's fast inverse transform and at a fraction of its size.
        simplejpeg: Whether simplejpeg decodes JPEG.
        describe: Names the stored row of an origin (file index, row of the file).
        skipped: Where skipped rows are counted.
    """

    size: tuple[int, int]
    stored: tuple[int, int] | None
    resize: bool
    policy: str
    fast: bool
    simplejpeg: bool
    describe: Callable[[int, int], str]
    skipped: SkippedRows

    def rows(
        self, batch: StoredBatch, images: npt.NDArray[Any], weights: npt.NDArray[np.float32], rows: Iterable[int]
    ) -> None:
        """Decodes some rows of a batch into `images`, and takes the weight of those that are skipped.

        Raises:
            BadRowError: If a row is bad, no padding, and the policy is `error`.
        """
        direct = images.dtype == np.uint8
        scratch = np.empty((0, 0, CHANNELS) if direct else images.shape[1:], dtype=np.uint8)
        for i in rows:
            pixels = images[i] if direct else scratch
            try:
                self._fill(pixels, batch.images[i], is_raw=i in batch.raw)
            except ImageError as error:
                pixels[...] = 0
                if weights[i]:
                    self._bad_row(batch.origins[i], str(error))
                    weights[i] = 0
            if not direct:
                images[i] = scratch

    def _bad_row(self, origin: npt.NDArray[np.int64], reason: str) -> None:
        named = self.describe(int(origin[0]), int(origin[1]))
        message = f"{named} does not decode to {self.size[0]} x {self.size[1]} pixels: {reason}"
        self.skipped.refuse(message, self.policy)

    def _fill(self, pixels: Pixels, data: memoryview | None, *, is_raw: bool) -> None:
        if data is None:
            raise ImageError("empty", "the row holds null")
        if is_raw:
            self._fit(pixels, self._raw(data))
        elif not (self.simplejpeg and data[:2] == _JPEG and self._with_simplejpeg(pixels, data)):
            from ..etl.images import decode

            self._fit(pixels, np.asarray(decode(bytes(data))))

    def _raw(self, data: memoryview) -> Pixels:
        if self.stored is None:
            raise ImageError(
                "wrong_size", "no image of the feed tells the size of its pixels; store height and width beside them"
            )
        height, width = self.stored
        if len(data) != height * width * CHANNELS:
            raise ImageError(
                "wrong_size",
                f"it holds {len(data)} bytes, the feed's {height} x {width} pixels are {height * width * CHANNELS}; "
                "store all raw images at one size, or encode them",
            )
        return np.frombuffer(data, dtype=np.uint8).reshape(height, width, CHANNELS)

    def _fit(self, pixels: Pixels, whole: Pixels) -> None:
        """Copies an image to where it belongs, resized if need be."""
        if whole.shape == pixels.shape:
            pixels[...] = whole
            return
        if not self.resize:
            raise ImageError(
                "size", f"it is {whole.shape[0]} x {whole.shape[1]} pixels; resize all images with image_size"
            )
        from PIL import Image

        height, width = self.size
        pixels[...] = np.asarray(Image.fromarray(whole).resize((width, height), Image.Resampling.BILINEAR))

    def _with_simplejpeg(self, pixels: Pixels, data: memoryview) -> bool:
        """Decodes a JPEG straight into `pixels`; False leaves it to Pillow: another form of colour, or a bad file."""
        import simplejpeg

        from ..etl.images import DEFAULT_MAX_PIXELS

        if needs_care(data):
            return False
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
            if colours not in _PLAIN_COLOURS:
                return False
            if (height, width) == pixels.shape[:2]:
                simplejpeg.decode_jpeg(data, "RGB", fastdct=self.fast, buffer=pixels)
                return True
            if not self.resize or height * width > DEFAULT_MAX_PIXELS:
                return False
            least = {"min_height": _SCALED_MARGIN * self.size[0], "min_width": _SCALED_MARGIN * self.size[1]}
            whole = simplejpeg.decode_jpeg(data, "RGB", fastdct=self.fast, **(least if self.fast else {}))
        except ValueError:
            return False
        self._fit(pixels, whole)
        return True


def has_simplejpeg(decoder: str) -> bool:
    """Chooses what decodes JPEG: simplejpeg where it is installed, unless `decoder` is `pillow`.

    Raises:
        MissingDependencyError: If simplejpeg was asked for and is not installed.
    """
    if decoder == "pillow":
        return False
    found = importlib.util.find_spec("simplejpeg") is not None
    if decoder == "simplejpeg" and not found:
        raise MissingDependencyError("decoder='simplejpeg' needs simplejpeg: pip install simplejpeg")
    return found


def needs_care(data: memoryview) -> bool:
    """Tells whether a JPEG may be turned by EXIF or XMP or has a colour profile, which ingest and inference apply.

    Looks at the segments before the picture's frame, as ITU T.81 annex B orders them; a marker may have fill bytes
    before it.
    """
    place, end = 2, len(data)
    while place + 4 <= end and data[place] == _MARKER:
        marker = data[place + 1]
        if marker == _MARKER:
            place += 1
            continue
        if marker not in _SEGMENTS_BEFORE_FRAME:
            break
        for kind, name in _TELLING_SEGMENTS:
            if marker == kind and data[place + 4 : place + 4 + len(name)] == name:
                return True
        place += 2 + (data[place + 2] << 8 | data[place + 3])
    return False


class DecodingPool:
    """Decodes batches in threads, the rows of a batch divided among them, so that few batches are in memory at once.

    Args:
        decoding: How rows are decoded.
        threads: Number of threads.
        buffers: Where the batches' memory comes from.
    """

    def __init__(self, decoding: Decoding, threads: int, buffers: BatchBuffers) -> None:
        self._decoding = decoding
        self._threads = threads
        self._buffers = buffers
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lakelens-decode")

    def start(self, batch: StoredBatch) -> DecodedBatch:
        """Begins to decode a batch."""
        images, weights = self._buffers.take(), batch.weights.copy()
        rows = len(batch.images)
        images[rows:] = 0
        share = max(_ROWS_PER_TASK, -(-rows // self._threads))
        shares = [range(first, min(first + share, rows)) for first in range(0, rows, share)]
        tasks = [self._pool.submit(self._decoding.rows, batch, images, weights, part) for part in shares]
        return DecodedBatch(batch, images, weights, tasks)

    def close(self) -> None:
        """Ends the threads; what has not begun is left out."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class DecodedBatch:
    """A batch that is being decoded.

    Attributes:
        stored: The batch as it was stored.
        images: [rows, height, width, 3], complete once `wait` has returned.
        weights: float32 [rows], zero where a row is bad.
    """

    stored: StoredBatch
    images: npt.NDArray[Any]
    weights: npt.NDArray[np.float32]
    _tasks: Sequence[Future[None]]

    def wait(self) -> DecodedBatch:
        """Waits for the last row.

        Raises:
            BadRowError: If a row is bad and the policy is `error`.
        """
        for task in self._tasks:
            error = task.exception()
            if error is not None:
                # Raised in here, the error would hold this frame, and by its tasks the frame the error: a cycle that
                # keeps images and row groups until the next garbage collection.
                try:
                    raise error
                finally:
                    del self, task, error
        return self


def size_of(data: bytes) -> tuple[int, int]:
    """Reads an upright image's height and width.

    Raises:
        ImageError: If the bytes are no image, or one with more pixels than Pillow opens.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return (image.width, image.height) if turned else (image.height, image.width)
    except Image.DecompressionBombError as error:
        raise ImageError("too_many_pixels", str(error)) from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise ImageError("not_an_image", str(error)) from error
