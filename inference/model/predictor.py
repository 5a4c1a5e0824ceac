"""A loaded model that turns stored images into predictions: bounded batches, decoding ahead, errors row by row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from ...errors import ImageError, ModelMismatchError, ScoringFailedError
from ...etl.annotations.frames import ImageFrames
from ...etl.images.colours import encode_jpeg
from ...etl.images.stored_image import Bytes, PixelDecoder, Pixels, StoredImage, size_of
from ...training.checkpoints.checkpoint import Checkpoint
from ...training.tasks.task import Task
from .compiled import Answers, compile_model
from .failures import first_line, is_of_the_machine, is_transient
from .onnx_engine import ONNXRUNTIME
from .user_code import UserCode

# Of `ImageFrames`; None for an image that was not decoded, and for a task that needs none.
Frames: TypeAlias = npt.NDArray[np.object_]


@dataclass(frozen=True)
class StoredRows:
    """Some rows of an image table; all sequences are equally long."""

    images: Sequence[Bytes | None]  # The stored bytes; None is null
    # `jpeg`, `png`, `raw_rgb` or another encoded format; None when every image is encoded
    formats: Sequence[str | None] | None = None
    heights: Sequence[int | None] | None = None  # Height in pixels, needed for `raw_rgb` only
    widths: Sequence[int | None] | None = None  # Width in pixels, needed for `raw_rgb` only
    sources: Sequence[Mapping[str, Any] | None] | None = None  # Values of the column `source`; None if the rows lack it

    def __len__(self) -> int:
        return len(self.images)

    def rows(self, start: int, stop: int) -> StoredRows:
        """Takes the rows from `start` up to `stop`."""
        return StoredRows(
            self.images[start:stop],
            None if self.formats is None else self.formats[start:stop],
            None if self.heights is None else self.heights[start:stop],
            None if self.widths is None else self.widths[start:stop],
            None if self.sources is None else self.sources[start:stop],
        )


def decode_rows(
    rows: StoredRows, pixels: Pixels, decoder: PixelDecoder, frames: Frames | None = None
) -> list[str | None]:
    """Decodes rows into `pixels`, scaled as in training; returns for each None, or `<reason>: <message>`."""
    nothing = [None] * len(rows)
    images = map(StoredImage, rows.images, rows.formats or nothing, rows.heights or nothing, rows.widths or nothing)
    errors: list[str | None] = []
    for row, (image, source) in enumerate(zip(images, rows.sources or nothing, strict=True)):
        try:
            decoder.decode(image, pixels[row])
            if frames is not None:
                height, width = size_of(image)
                frames[row] = ImageFrames.of(width, height, source)
            errors.append(None)
        except ImageError as error:
            errors.append(f"{error.reason}: {error}")
        except Exception as error:  # noqa: BLE001  whatever one image does to its decoder, the other rows are scored
            errors.append(f"corrupt: {type(error).__name__}: {error}")
    return errors


DEFAULT_BATCH_BYTES = 32 << 20
# Larger batches are not faster, and a model's activations, many times its input, only take memory.
MOST_BATCH_ROWS = 256
_INPUT_BYTES = 4  # float32, as the model computes


@dataclass(frozen=True)
class Predictions:
    """A model's answers for some rows; one entry per row in each attribute."""

    answers: Answers  # float32 [rows, ...], as the task gives them; a row with an error holds NaN
    errors: list[str | None]  # None, or why the row has no prediction, as `<reason>: <message>`
    # [rows], each stored image's size, and its file's size and orientation; None if the task ignores them
    frames: Frames

    def __len__(self) -> int:
        return len(self.errors)

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Bool [rows], whether the row has a prediction."""
        return np.array([error is None for error in self.errors], dtype=np.bool_)


class Predictor:
    """Runs one model over stored images."""

    # An error belongs to a row only if a black image of the model's size can be decoded and predicted at the same time.
    # If not, or if the model runs out of memory on a single image, the machine or the model is at fault, and predicting
    # fails.

    def __init__(
        self,
        function: Callable[[Pixels], Answers],
        task: Task,
        *,
        input_shape: tuple[int, int, int],
        answer_shape: tuple[int, ...],
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        decode_threads: int = 1,
        engine: str = "",
    ) -> None:
        self.engine = engine
        self.task = task
        self.input_shape = input_shape
        self.answer_shape = answer_shape
        self.batch_rows = max(1, min(MOST_BATCH_ROWS, batch_bytes // (int(np.prod(input_shape)) * _INPUT_BYTES)))
        self._function = function
        self._decoder = PixelDecoder(letterbox=task.feed_options.get("letterbox", False))
        self._decode_threads = max(1, decode_threads)

    def predict(
        self,
        images: Sequence[bytes | None],
        formats: Sequence[str | None] | None = None,
        heights: Sequence[int | None] | None = None,
        widths: Sequence[int | None] | None = None,
    ) -> Predictions:
        """Predicts for stored images; see `StoredRows` for the arguments."""
        parts = list(self.stream([StoredRows(images, formats, heights, widths)]))
        return Predictions(
            np.concatenate([np.empty((0, *self.answer_shape), np.float32), *(part.answers for part in parts)]),
            [error for part in parts for error in part.errors],
            np.concatenate([np.empty(0, np.object_), *(part.frames for part in parts)]),
        )

    def stream(self, batches: Iterable[StoredRows]) -> Iterator[Predictions]:
        """Predicts for rows in order, in pieces of one batch and at most `batch_rows`, decoding the next meanwhile."""
        with ThreadPoolExecutor(self._decode_threads, "lakelens-decode") as pool:
            decoding: deque[_Decoding] = deque()
            for batch in batches:
                for start in range(0, len(batch), self.batch_rows):
                    decoding.append(self._decode(pool, batch.rows(start, start + self.batch_rows)))
                    if len(decoding) > 1:
                        yield self._predict(decoding.popleft())
            while decoding:
                yield self._predict(decoding.popleft())

    def _decode(self, pool: ThreadPoolExecutor, rows: StoredRows) -> _Decoding:
        pixels = np.empty((len(rows), *self.input_shape), dtype=np.uint8)
        frames: Frames = np.full(len(rows), None)
        share = -(-len(rows) // self._decode_threads)
        pieces = [
            pool.submit(self._decode_into, rows.rows(start, start + share), pixels[start:stop], frames[start:stop])
            for start in range(0, len(rows), share)
            for stop in [start + share]
        ]
        return _Decoding(rows, pixels, frames, pieces)

    def _decode_into(self, rows: StoredRows, pixels: Pixels, frames: Frames) -> list[str | None]:
        return decode_rows(rows, pixels, self._decoder, frames if self.task.needs_frames else None)

    def _predict(self, decoding: _Decoding) -> Predictions:
        pixels, errors = decoding.pixels, decoding.wait()
        for row, error in enumerate(errors):
            if error is not None and is_transient(error):
                one = slice(row, row + 1)
                errors[row] = self._decode_again(decoding.rows.rows(row, row + 1), pixels[one], decoding.frames[one])
        decoded = np.array([error is None for error in errors], dtype=np.bool_)
        answers = np.full((len(errors), *self.answer_shape), np.nan, dtype=np.float32)
        if decoded.any():
            given = pixels if decoded.all() else pixels[decoded]
            answers[decoded], raised = self._run(given)
            for row, error in zip(np.flatnonzero(decoded).tolist(), raised, strict=True):
                errors[row] = error
        for row in np.flatnonzero(~np.isfinite(answers.reshape(len(answers), -1)).all(axis=1)).tolist():
            errors[row] = errors[row] or "not_finite: the model's output for this image has NaN or infinite values"
            answers[row] = np.nan
        return Predictions(answers, errors, decoding.frames)

    def _decode_again(self, row: StoredRows, pixels: Pixels, frames: Frames) -> str | None:
        """Decodes a row again whose error the machine may have caused, while this task decodes nothing else."""
        (error,) = self._decode_into(row, pixels, frames)
        if error is not None and is_transient(error):
            fault = self._fault_of_decoding()
            if fault is not None:
                raise ScoringFailedError(f"this machine cannot decode a black image of the model's size: {fault}")
        return error

    def _fault_of_decoding(self) -> str | None:
        height, width, _ = self.input_shape
        try:
            black = encode_jpeg(Image.new("RGB", (width, height)))
            (fault,) = decode_rows(StoredRows([black]), np.empty((1, *self.input_shape), np.uint8), self._decoder)
        except (MemoryError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return fault

    def _run(self, pixels: Pixels) -> tuple[Answers, list[str | None]]:
        """Runs the model; if it raises, halves the batch until only the failing rows are left out."""
        try:
            return self._function(pixels), [None] * len(pixels)
        except ModelMismatchError:  # true of the model, whatever the row
            raise
        except Exception as error:  # noqa: BLE001  a model raises whatever its layers raise
            if len(pixels) == 1:
                return self._run_again(pixels, error)
        middle = len(pixels) // 2
        first, first_errors = self._run(pixels[:middle])
        second, second_errors = self._run(pixels[middle:])
        return np.concatenate([first, second]), first_errors + second_errors

    def _run_again(self, pixels: Pixels, raised: Exception) -> tuple[Answers, list[str | None]]:
        """Decides whether one row, or the model or machine, caused an error of the model."""
        if is_of_the_machine(raised):
            raise ScoringFailedError(f"the model failed on a single image, {first_line(raised)}") from raised
        try:
            self._function(np.zeros_like(pixels))
        except Exception as error:
            raise ScoringFailedError(
                f"the model, which ran on a black image when it was loaded, fails on it now, {first_line(error)}"
            ) from error
        try:
            return self._function(pixels), [None]
        except Exception as error:  # noqa: BLE001  as above
            return np.full((1, *self.answer_shape), np.nan, np.float32), [f"model_raised: {first_line(error)}"]


@dataclass(frozen=True)
class _Decoding:
    """A batch whose pieces are being decoded."""

    rows: StoredRows
    pixels: Pixels
    frames: Frames
    pieces: list[Future[list[str | None]]]

    def wait(self) -> list[str | None]:
        return [error for piece in self.pieces for error in piece.result()]


def build_predictor(
    checkpoint: Checkpoint, batch_bytes: int, threads: int, code: UserCode, engine: str | None = None
) -> Predictor:
    """Loads an open checkpoint."""
    with code.loaded() as objects:
        compiled = compile_model(checkpoint, objects, onnx_threads=threads if engine == ONNXRUNTIME else None)
    return Predictor(
        compiled.function,
        compiled.task,
        input_shape=checkpoint.input_shape,
        answer_shape=compiled.answer_shape,
        batch_bytes=batch_bytes,
        decode_threads=threads,
        engine=compiled.engine,
    )
