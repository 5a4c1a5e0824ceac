"""A batch of stored rows to a batch of pixels, in threads; bad rows are an error or lose their weight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ImageError
from .buffers import BatchBuffers
from .image_plan import ImagePlan
from .image_rows import StoredBatch

# Rows that are worth its own task.
_ROWS_PER_TASK = 4


class DecodingPool:
    """Decodes batches in threads, the rows of a batch divided among them, so that few batches are in memory at once."""

    def __init__(self, images: ImagePlan, threads: int, buffers: BatchBuffers) -> None:
        self._plan = images
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
        if batch.copy is not None:
            tasks = [self._pool.submit(batch.copy, images, part) for part in shares]
        else:
            tasks = [self._pool.submit(_decode_rows, self._plan, batch, images, weights, part) for part in shares]
        return DecodedBatch(batch, images, weights, tasks)

    def close(self) -> None:
        """Ends the threads; what has not begun is left out."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class DecodedBatch:
    """A batch that is being decoded."""

    stored: StoredBatch  # The batch as it was stored
    images: npt.NDArray[Any]  # [rows, height, width, 3], complete once `wait` has returned
    weights: npt.NDArray[np.float32]  # float32 [rows], zero where a row is bad
    _tasks: Sequence[Future[None]]

    def wait(self) -> DecodedBatch:
        """Waits for the last row."""
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


def _decode_rows(
    plan: ImagePlan,
    batch: StoredBatch,
    images: npt.NDArray[Any],
    weights: npt.NDArray[np.float32],
    rows: Iterable[int],
) -> None:
    """Decodes some rows of a batch into `images`, and takes the weight of those that are skipped."""
    direct = images.dtype == np.uint8
    scratch = np.empty((0, 0, 0) if direct else images.shape[1:], dtype=np.uint8)
    for i in rows:
        pixels = images[i] if direct else scratch
        try:
            plan.decoder.decode(batch.images[i], pixels)
        except ImageError as error:
            pixels[...] = 0
            if weights[i]:
                plan.refuse(batch.origins[i].tolist(), plan.undecodable(str(error)))
                weights[i] = 0
        if not direct:
            images[i] = scratch
