"""Encoded rows to pixels: by TensorFlow's own ops, by simplejpeg straight into the batch, or by Pillow."""

from __future__ import annotations

import importlib.util
import io
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import BadRowError, ImageError, InvalidArgumentError, MissingDependencyError
from .stored import CHANNELS, Pixels, StoredBatch, aligned_empty

if TYPE_CHECKING:
    import tensorflow as tf

logger = logging.getLogger(__name__)

BAD_ROW_POLICIES = ("error", "skip")
# How exactly JPEG is decoded -> TensorFlow's name of the inverse transform. TensorFlow's own default is the fast one.
JPEG_METHODS = {"accurate": "INTEGER_ACCURATE", "fast": "INTEGER_FAST"}
DECODERS = ("auto", "simplejpeg", "tensorflow", "pillow")
# Below twice the size that is asked for, resampling no longer hides the aliasing of libjpeg's scaled decoding.
_SCALED_MARGIN = 2
_REMEMBERED_ROWS = 100
# Rows that are worth a task of their own.
_ROWS_PER_TASK = 4


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


@dataclass(frozen=True)
class Decoding:
    """How rows are decoded.

    Attributes:
        height: Pixels of every image that comes out.
        width: Pixels.
        resize: Whether images of another size are resized; else they are bad rows.
        policy: `error` raises at a bad row, `skip` gives it zeros and weight 0.
        jpeg: `accurate` or `fast`.
        library: What decodes JPEG: `simplejpeg`, `tensorflow` or `pillow`.
        describe: Names the stored row of an origin (file index, row of the file).
        skipped: Where skipped rows are counted.
    """

    height: int
    width: int
    resize: bool
    policy: str
    jpeg: str
    library: str
    describe: Callable[[int, int], str]
    skipped: SkippedRows

    def __post_init__(self) -> None:
        if self.policy not in BAD_ROW_POLICIES:
            raise InvalidArgumentError(f"bad_rows={self.policy!r}: the policies are {', '.join(BAD_ROW_POLICIES)}")
        if self.jpeg not in JPEG_METHODS:
            raise InvalidArgumentError(f"jpeg={self.jpeg!r}: the methods are {', '.join(JPEG_METHODS)}")

    def bad_row(self, origin: npt.NDArray[np.int64], reason: str) -> None:
        """Follows the policy for a row that does not decode.

        Raises:
            BadRowError: If the policy is `error`.
        """
        named = self.describe(int(origin[0]), int(origin[1]))
        message = f"{named} does not decode to {self.height} x {self.width} pixels: {reason}"
        if self.policy == "error":
            raise BadRowError(f"{message}; repair the row, or feed without it: bad_rows='skip'")
        self.skipped.add(message)
        logger.warning("skipped: %s", message)

    def fill(self, pixels: Pixels, data: bytes | memoryview, origin: npt.NDArray[np.int64], *, is_real: bool) -> int:
        """Decodes one row into `pixels` without TensorFlow; gives 1 if it is good, 0 if it was skipped.

        Raises:
            BadRowError: If the row is bad, no padding, and the policy is `error`.
        """
        if self.library == "simplejpeg" and data[:2] == b"\xff\xd8" and self._with_simplejpeg(pixels, data):
            return 1
        try:
            pixels[...] = self._with_pillow(bytes(data))
        except ImageError as error:
            pixels[...] = 0
            if is_real:
                self.bad_row(origin, str(error))
            return 0
        return 1

    def _with_simplejpeg(self, pixels: Pixels, data: bytes | memoryview) -> bool:
        """Decodes a JPEG straight into `pixels`; False leaves it to Pillow: another size, CMYK, or a bad file."""
        import simplejpeg

        fast = self.jpeg == "fast"
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            if (height, width) == pixels.shape[:2]:
                simplejpeg.decode_jpeg(data, "RGB", fastdct=fast, buffer=pixels)
                return True
            if not self.resize:
                return False
            least = {"min_height": _SCALED_MARGIN * self.height, "min_width": _SCALED_MARGIN * self.width}
            whole = simplejpeg.decode_jpeg(data, "RGB", fastdct=fast, **(least if fast else {}))
        except ValueError:
            return False
        pixels[...] = self._resized(whole)
        return True

    def _with_pillow(self, data: bytes) -> Pixels:
        from ..etl.images import decode

        pixels = np.asarray(decode(data))
        if pixels.shape[:2] == (self.height, self.width):
            return pixels
        if not self.resize:
            raise ImageError(
                "size", f"it is {pixels.shape[0]} x {pixels.shape[1]} pixels; resize all images with image_size"
            )
        return self._resized(pixels)

    def _resized(self, pixels: Pixels) -> Pixels:
        from PIL import Image

        return np.asarray(Image.fromarray(pixels).resize((self.width, self.height), Image.Resampling.BILINEAR))

    def rows(self, batch: StoredBatch, pixels: Pixels, weights: npt.NDArray[np.float32], rows: range) -> None:
        """Decodes some rows of a batch into `pixels`, and takes the weight of those that are skipped."""
        for i in rows:
            data = batch.encoded[i]
            if data or not len(batch.pixels):
                weights[i] *= self.fill(pixels[i], data, batch.origins[i], is_real=bool(weights[i]))
            elif batch.pixels.shape[1:3] == pixels.shape[1:3]:
                pixels[i] = batch.pixels[i]
            else:
                pixels[i] = self._resized(batch.pixels[i])


def library_for(decoder: str, *, with_tensorflow: bool) -> str:
    """Chooses what decodes JPEG. All give the same pixels; they differ in speed alone.

    Args:
        decoder: One of `DECODERS`.
        with_tensorflow: Whether TensorFlow may do it.

    Raises:
        InvalidArgumentError: If there is no such decoder, or none for those who use no TensorFlow.
        MissingDependencyError: If simplejpeg was asked for and is not installed.
    """
    known = [name for name in DECODERS if with_tensorflow or name != "tensorflow"]
    if decoder not in known:
        raise InvalidArgumentError(f"decoder={decoder!r}: the decoders are {', '.join(known)}")
    if decoder in ("tensorflow", "pillow"):
        return decoder
    if decoder == "auto" and with_tensorflow:
        return "tensorflow"
    if importlib.util.find_spec("simplejpeg") is not None:
        return "simplejpeg"
    if decoder == "simplejpeg":
        raise MissingDependencyError("decoder='simplejpeg' needs simplejpeg: pip install simplejpeg")
    return "pillow"


def image_size_of(image_size: int | Sequence[int]) -> tuple[int, int]:
    """Reads an image size given as one number or as (height, width).

    Raises:
        InvalidArgumentError: If it is neither.
    """
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2 or any(not isinstance(side, int) or side < 1 for side in sides):
        raise InvalidArgumentError(f"image_size={image_size!r}: give a number of pixels or (height, width), each >= 1")
    return sides


class TensorFlowDecoder:
    """Decodes batches of encoded images with TensorFlow's ops, the rows of a batch in parallel.

    JPEG, PNG, BMP and GIF are told apart by their first bytes. A batch in which a row fails is gone through again row
    by row, with Pillow for what TensorFlow does not read.

    Args:
        rows: Rows of a batch.
        decoding: How rows are decoded.
    """

    def __init__(self, rows: int, decoding: Decoding) -> None:
        import tensorflow as tf

        self._decoding = decoding
        self._size = (decoding.height, decoding.width)
        self._all = tf.function(
            lambda encoded: tf.stack([self._decode_one(row) for row in tf.unstack(encoded, rows)])
        ).get_concrete_function(tf.TensorSpec((rows,), tf.string))

    def _decode_one(self, encoded: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf

        # Despite its name it reads PNG, GIF and BMP too, and it alone takes the method for JPEG.
        image = tf.io.decode_jpeg(encoded, channels=CHANNELS, dct_method=JPEG_METHODS[self._decoding.jpeg])
        if self._decoding.resize:
            image = self._resized(image)
        return tf.ensure_shape(image, (*self._size, CHANNELS))

    def _resized(self, pixels: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf

        resized = tf.image.resize(pixels, self._size, antialias=True)
        return tf.cast(tf.round(tf.clip_by_value(resized, 0.0, 255.0)), tf.uint8)

    def __call__(
        self, encoded: tf.Tensor, stored: tf.Tensor, origins: tf.Tensor, weights: tf.Tensor
    ) -> tuple[Any, Any]:
        """Decodes one batch.

        Args:
            encoded: string [rows]; empty for a row that is stored as pixels.
            stored: uint8 [rows, stored height, stored width, 3], the rows stored as pixels; [0, ...] if none is.
            origins: int64 [rows, 2], file index and row of the file.
            weights: float32 [rows].

        Returns:
            uint8 [rows, height, width, 3], and the weights, zero where a row is bad.

        Raises:
            BadRowError: If a row does not decode and the policy is `error`.
        """
        import tensorflow as tf

        if not len(stored):
            try:
                return self._all(encoded), weights
            except (tf.errors.InvalidArgumentError, tf.errors.UnknownError, ValueError):
                return self._row_by_row(encoded.numpy(), None, origins.numpy(), weights.numpy())
        fitted = stored if tuple(stored.shape[1:3]) == self._size else self._resized(stored)
        data = encoded.numpy()
        if not any(data):
            return fitted, weights
        return self._row_by_row(data, fitted, origins.numpy(), weights.numpy())

    def _row_by_row(
        self,
        encoded: npt.NDArray[np.object_],
        stored: tf.Tensor | None,
        origins: npt.NDArray[np.int64],
        weights: npt.NDArray[np.float32],
    ) -> tuple[Any, Any]:
        pixels = aligned_empty((len(weights), *self._size, CHANNELS))
        weights = weights.copy()
        for i, data in enumerate(encoded):
            if stored is not None and not data:
                pixels[i] = stored[i].numpy()
                continue
            weights[i] *= self._fill(pixels[i], data, origins[i], is_real=bool(weights[i]))
        return pixels, weights

    def _fill(self, pixels: Pixels, data: bytes, origin: npt.NDArray[np.int64], *, is_real: bool) -> int:
        """Decodes one row; gives 1 if it is good and 0 if it was skipped."""
        import tensorflow as tf

        try:
            pixels[...] = self._decode_one(tf.constant(data)).numpy()
        except (tf.errors.InvalidArgumentError, tf.errors.UnknownError, ValueError):
            return self._decoding.fill(pixels, data, origin, is_real=is_real)
        return 1


class DecodingPool:
    """Decodes batches in threads, the rows of a batch divided among them, so that few batches are in memory at once.

    Args:
        decoding: How rows are decoded.
        threads: Number of threads.
    """

    def __init__(self, decoding: Decoding, threads: int) -> None:
        self._decoding = decoding
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lakelens-decode")

    def start(self, batch: StoredBatch) -> DecodedBatch:
        """Begins to decode a batch."""
        size = (self._decoding.height, self._decoding.width)
        if len(batch.pixels) and batch.pixels.shape[1:3] == size and not any(batch.encoded):
            return DecodedBatch(batch, batch.pixels, batch.weights, [])
        rows = len(batch.weights)
        pixels, weights = aligned_empty((rows, *size, CHANNELS)), batch.weights.copy()
        share = max(_ROWS_PER_TASK, -(-rows // self._threads))
        shares = [range(first, min(first + share, rows)) for first in range(0, rows, share)]
        tasks = [self._pool.submit(self._decoding.rows, batch, pixels, weights, part) for part in shares]
        return DecodedBatch(batch, pixels, weights, tasks)

    def close(self) -> None:
        """Ends the threads; what has not begun is left out."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class DecodedBatch:
    """A batch that is being decoded.

    Attributes:
        stored: The batch as it was stored.
        pixels: uint8 [rows, height, width, 3], complete once `wait` has returned.
        weights: float32 [rows], zero where a row is bad.
    """

    stored: StoredBatch
    pixels: Pixels
    weights: npt.NDArray[np.float32]
    _tasks: Sequence[Future[None]]

    def wait(self) -> DecodedBatch:
        """Waits for the last row.

        Raises:
            BadRowError: If a row is bad and the policy is `error`.
        """
        for task in self._tasks:
            task.result()
        return self


def size_of(data: bytes) -> tuple[int, int]:
    """Reads an upright image's height and width.

    Raises:
        ImageError: If the bytes are no image.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return (image.width, image.height) if turned else (image.height, image.width)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise ImageError("not_an_image", str(error)) from error
