"""A batch of stored rows to a batch of pixels, in threads; bad rows are an error or lose their weight."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...errors import BadRowError, ImageError
from .buffers import BatchBuffers

if TYPE_CHECKING:
    from ...etl.images.stored_image import PixelDecoder
    from .image_rows import StoredBatch

logger = logging.getLogger(__name__)

_REMEMBERED_ROWS = 100
# Rows that are worth its own task.
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
    """How the rows of a feed are decoded.

    Attributes:
        size: Height and width in pixels of every image that comes out.
        decoder: Decodes one image.
        policy: `error` raises at a bad row, `skip` gives it zeros and weight 0.
        describe: Names the stored row of an origin (file index, row of the file).
        skipped: Where skipped rows are counted.
    """

    size: tuple[int, int]
    decoder: PixelDecoder
    policy: str
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
        scratch = np.empty((0, 0, 0) if direct else images.shape[1:], dtype=np.uint8)
        for i in rows:
            pixels = images[i] if direct else scratch
            try:
                self.decoder.decode(batch.images[i], pixels)
            except ImageError as error:
                pixels[...] = 0
                if weights[i]:
                    self.refuse(batch.origins[i].tolist(), str(error))
                    weights[i] = 0
            if not direct:
                images[i] = scratch

    def refuse(self, origin: Sequence[int], reason: str) -> None:
        """Does with a row that does not decode what the policy says.

        Raises:
            BadRowError: If the policy is `error`.
        """
        self.skipped.refuse(f"{self.describe(*origin)} {undecodable(self.size, reason)}", self.policy)


def undecodable(size: tuple[int, int], reason: str) -> str:
    """Says of a row that it does not decode."""
    return f"does not decode to {size[0]} x {size[1]} pixels: {reason}"


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
        weights = batch.weights.copy()
        images = self._buffers.take()[: len(weights)]
        rows = len(batch.images)
        images[rows:] = 0
        share = max(_ROWS_PER_TASK, -(-rows // self._threads))
        shares = [range(first, min(first + share, rows)) for first in range(0, rows, share)]
        if batch.decoded is not None:
            tasks = [self._pool.submit(batch.decoded, images, part.start, part.stop) for part in shares]
        else:
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
