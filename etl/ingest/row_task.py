"""What a Spark task does with its share of a batch: files in, rows of the image table or of the quarantine out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import ImageError
from ...progress import image_counter
from ..annotations.boxes import PlacedBoxes, place_boxes
from ..annotations.frames import SourceFile
from ..annotations.record import BOXES_LOST, QUARANTINED, REASONS, Annotation, annotation_of, limit_classes, lost_boxes
from ..changes.plan import STORED_CLASS
from ..files import local_path
from ..images.isolated_decoder import EncodedImage, IsolatedDecoder, SourceImage
from ..images.recipe import Limits, Recipe
from ..model import schema
from ..model.splits import split_of
from ..sources.source import CONTENT

if TYPE_CHECKING:
    from ...spark.port import TaskCounter

# Arrow batches of images are cut by bytes: a batch of 10,000 rows, Spark's default, would pass 2 GiB.
_BATCH_BYTES = 8 * 1024 * 1024
_BATCH_ROWS = 1024
_MOST_CAUSES = 3

# Later times of change are stored as this one: Python has no later dates, and the last day differs by time zone.
_LATEST_US = int(datetime(9999, 12, 30, tzinfo=timezone.utc).timestamp()) * 1_000_000


@dataclass(frozen=True)
class BatchTask:
    """What every task of one ingest knows."""

    recipe: Recipe  # How sources become rows
    limits: Limits  # What one source may cost
    labels: Mapping[str, int]  # Class numbers by name
    batch_id: str  # Written into every row
    has_annotations: bool = False  # Whether the layout has boxes; without, the column is null rather than empty
    classes: frozenset[str] | None = None  # The only classes that may be stored, or None
    drop_bad_boxes: bool = False  # Whether an image that lost some of its boxes is stored with the others
    count_file: str | None = None  # Where `outcomes` counts what it has done, as `lakelens.progress` reads it
    done: tuple[TaskCounter, TaskCounter] | None = None  # Count the good and the bad sources of tasks that have ended

    def outcomes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields a row of `schema.OUTCOMES` for each source: a row of the image table, or why there is none."""
        packer, done = _Packer(schema.OUTCOMES), [0, 0]
        with image_counter(self.count_file) as count:
            for annotation, row, result in self._results(batches):
                placed = self._place(annotation, result) if isinstance(result, EncodedImage) else result
                is_good = isinstance(result, EncodedImage) and isinstance(placed, PlacedBoxes)
                count(is_good)
                done[not is_good] += 1
                if isinstance(result, EncodedImage) and isinstance(placed, PlacedBoxes):
                    reasons = [problem.reason for problem in (*annotation.problems, *placed.problems)]
                    reasons += result.notes
                    stored = self._stored_row(annotation, row, result, placed)
                    yield from packer.add({**stored, schema.PROBLEMS: reasons}, len(result.image))
                elif isinstance(placed, ImageError):
                    refused = {**self._quarantined_row(row, placed), STORED_CLASS: row.get(STORED_CLASS)}
                    yield from packer.add(refused, 256)
        yield from packer.flush()
        for counter, number in zip(self.done or (), done, strict=False):
            counter.add(number)

    def quarantined_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields a quarantine row for every source; one that succeeds, unlike in `outcomes`, is `unstable`."""
        packer = _Packer(schema.QUARANTINE)
        for annotation, row, result in self._results(batches):
            error = result if isinstance(result, ImageError) else self._place(annotation, result)
            if isinstance(error, PlacedBoxes):
                error = ImageError("unstable", "failed while the batch was written, and succeeded right after")
            yield from packer.add(self._quarantined_row(row, error), 256)
        yield from packer.flush()

    def _results(
        self, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[Annotation, dict[str, Any], EncodedImage | ImageError]]:
        """Decodes every source whose annotation lets it be stored."""
        with IsolatedDecoder(self.recipe, self.limits) as decoder:
            for batch in batches:
                rows = _rows(batch)
                annotations = [annotation_of(row) for row in rows]
                if self.classes is not None:
                    annotations = [limit_classes(annotation, self.classes) for annotation in annotations]
                refused = [annotation.quarantine for annotation in annotations]
                results = decoder.decode_all(_sources(batch, [problem is None for problem in refused]))
                for annotation, row, problem in zip(annotations, rows, refused, strict=True):
                    if problem is not None:
                        yield annotation, row, ImageError(problem.reason, problem.detail)
                    else:
                        yield annotation, row, _of_row(row, next(results))

    def _place(self, annotation: Annotation, stored: EncodedImage) -> PlacedBoxes | ImageError:
        """Carries the boxes to the stored image; an image that lost a box of its source is an error."""
        placed = self._placed(annotation, stored)
        if isinstance(placed, ImageError):
            return placed
        lost = lost_boxes((*annotation.problems, *placed.problems))
        if not lost or (self.drop_bad_boxes and placed.boxes):
            return placed
        causes = "; ".join(f"{found.reason}: {found.detail}" for found in lost[:_MOST_CAUSES])
        return ImageError(BOXES_LOST, f"{len(lost)} of its boxes cannot be stored: {causes}")

    def _placed(self, annotation: Annotation, stored: EncodedImage) -> PlacedBoxes | ImageError:
        if not annotation.boxes:
            return PlacedBoxes((), ())
        placed = place_boxes(
            annotation.boxes,
            source_size=(stored.source_width, stored.source_height),
            orientation=stored.orientation,
            placement=stored.placement,
            declared_size=annotation.size,
            decoded_size=(stored.decoded_width, stored.decoded_height),
            drawn_on=self.recipe.boxes_drawn_on,
        )
        fatal = next((found for found in placed.problems if REASONS[found.reason].effect == QUARANTINED), None)
        return placed if fatal is None else ImageError(fatal.reason, fatal.detail)

    def _stored_row(
        self, annotation: Annotation, row: dict[str, Any], stored: EncodedImage, placed: PlacedBoxes
    ) -> dict[str, Any]:
        name = annotation.label_name
        split = annotation.split or split_of(stored.content_hash, self.recipe.splits, self.recipe.split_seed)
        return {
            **self._shared_columns(row),
            schema.IMAGE: stored.image,
            schema.FORMAT: stored.format,
            schema.HEIGHT: stored.height,
            schema.WIDTH: stored.width,
            schema.LABEL: None if name is None else self.labels[name],
            schema.LABEL_NAME: name,
            schema.ANNOTATIONS: self._annotation_rows(annotation, placed),
            schema.SPLIT: split,
            schema.CONTENT_HASH: stored.content_hash,
            schema.SOURCE: SourceFile(
                stored.source_width, stored.source_height, stored.orientation, self.recipe.applied_resize
            )._asdict(),
        }

    def _annotation_rows(self, annotation: Annotation, placed: PlacedBoxes) -> list[dict[str, Any]] | None:
        """Writes the boxes; null if the image was not annotated, or if all lie in what `crop` cuts off."""
        if not self.has_annotations or annotation.boxes is None or (annotation.boxes and not placed.boxes):
            return None
        return [{**dataclasses.asdict(box), "label": self.labels[box.label_name]} for box in placed.boxes]

    def _quarantined_row(self, row: dict[str, Any], error: ImageError) -> dict[str, Any]:
        error_of_row = {"reason": error.reason, "error": str(error), schema.LABEL_NAME: row[schema.LABEL_NAME]}
        return {**self._shared_columns(row), **error_of_row}

    def _shared_columns(self, row: dict[str, Any]) -> dict[str, Any]:
        """The columns that rows of the image table and of the quarantine share; those left out become null."""
        names = (schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED, schema.ANNOTATION_HASH)
        return {**{name: row[name] for name in names}, schema.BATCH_ID: self.batch_id}


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Returns the rows without their bytes, and their times as numbers that are dates in Python too."""
    others = [name for name in batch.schema.names if name not in (CONTENT, schema.SOURCE_MODIFIED)]
    rows: list[dict[str, Any]] = batch.select(others).to_pylist()
    times = batch.column(schema.SOURCE_MODIFIED).cast(pa.int64()).to_pylist()
    for row, time in zip(rows, times, strict=True):
        row[schema.SOURCE_MODIFIED] = None if time is None else min(time, _LATEST_US)
    return rows


def _sources(batch: pa.RecordBatch, wanted: Sequence[bool]) -> Iterator[SourceImage]:
    has_bytes = CONTENT in batch.schema.names
    for value in itertools.compress(batch.column(CONTENT if has_bytes else schema.PATH), wanted):
        yield SourceImage(data=value.as_py() or b"") if has_bytes else SourceImage(path=local_path(value.as_py()))


class _Packer:
    """Collects rows into Arrow batches of bounded size."""

    def __init__(self, arrow_schema: pa.Schema) -> None:
        self._schema = arrow_schema
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, row: dict[str, Any], size: int) -> Iterator[pa.RecordBatch]:
        self._rows.append(row)
        self._bytes += size
        if self._bytes >= _BATCH_BYTES or len(self._rows) >= _BATCH_ROWS:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            yield pa.RecordBatch.from_pylist(self._rows, schema=self._schema)
            self._rows, self._bytes = [], 0


def _of_row(row: Mapping[str, Any], result: EncodedImage | ImageError) -> EncodedImage | ImageError:
    """Tells a row that brings null instead of bytes from an empty file."""
    if isinstance(result, ImageError) and result.reason == "empty" and row[schema.SOURCE_LENGTH] < 0:
        return ImageError("empty", "the row brings no bytes: its content is NULL")
    return result
