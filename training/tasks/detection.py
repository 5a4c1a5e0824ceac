"""Boxes with classes in an image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import NotAnImageTableError, TrialError
from .class_metrics import csv_text, number_text
from .task import Task, TaskEvaluation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from ...etl.annotations.frames import ImageFrames
    from ..feed.feed import DeltaFeed
    from .average_precision import ClassPrecision
    from .task import Counts, ModelOutput

# The column of a prediction.
DETECTIONS = "detections"
DETECTION_SQL = (
    "ARRAY<STRUCT<label: INT, label_name: STRING, score: FLOAT, xmin: FLOAT, ymin: FLOAT, xmax: FLOAT, ymax: FLOAT>>"
)
_MATCHES, _OBJECTS = "matches", "objects"
_CORNERS = 4
# Detections of an image, as COCO counts them, and what becomes one.
MOST_DETECTIONS = 100
LEAST_SCORE = 0.05
_OVERLAP = 0.5
# Pairs of candidate and class, those with the best scores, among which an image's detections are looked for.
_CONSIDERED = 1000


class Detection(Task):
    """Labels are boxes float32 [rows, boxes, 6]; models give candidates [rows, candidates, 4 + classes].

    A label is xmin, ymin, xmax, ymax in pixels of the image, class number (-1 fills up), and 1 for a difficult object
    or a crowd. A candidate is a box in the same pixels and a logit for each class, of which a sigmoid makes the score.
    """

    name: ClassVar[str] = "detection"
    prediction_columns: ClassVar[Mapping[str, str]] = {DETECTIONS: DETECTION_SQL}
    needs_frames: ClassVar[bool] = True
    metric_names: ClassVar[Sequence[str]] = ("map50", "map50_voc07", "map", "recall50", "recall")
    # The image itself has no class.
    table_options: ClassVar[Mapping[str, Any]] = {"label_column": None}

    def check_feed(self, feed: DeltaFeed) -> None:
        """Checks that a table has boxes; see `Task.check_feed`."""
        from ...etl.model.schema import BOX_CORNERS  # here, because a search does not need pyarrow

        column = feed.plan.columns.boxes
        declared = feed.plan.schema.get(column)
        wanted = {*BOX_CORNERS, "label"}
        found = "has no such column" if declared is None else f"has {declared} there"
        if declared is None or not all(re.search(rf"\b{name}\b", str(declared)) for name in wanted):
            raise NotAnImageTableError(
                f"{feed.location}@{feed.version}: task detection reads boxes from column {column!r}, and the table "
                f"{found}; ingest with layout voc, coco or manifest, or name the column of an array of structs with "
                f"{', '.join(sorted(wanted))} as data.columns.boxes"
            )

    @property
    def feed_options(self) -> dict[str, Any]:
        """Asks for boxes as one array, on images that keep their proportions; see `Task.feed_options`."""
        return {"box_classes": len(self.class_names), "letterbox": True}

    def check_output(self, output: ModelOutput) -> None:
        """Checks that a model gives candidates; see `Task.check_output`."""
        shape = output.shape
        if shape is None:
            return
        if not isinstance(shape, tuple) or len(shape) != 3 or shape[-1] not in (None, self._columns):
            raise TrialError(
                f"the model gives {shape}; for task detection and {len(self.class_names)} classes it must give [rows, "
                f"candidates, {self._columns}]: xmin, ymin, xmax, ymax in pixels of the image, then a logit per class"
            )

    def describe_output(self, output: ModelOutput) -> dict[str, Any]:
        """Returns what the values are; see `Task.describe_output`."""
        return {"values": "corners, logits"}

    def answers(self, outputs: Any, described: Mapping[str, Any]) -> npt.NDArray[np.float32]:
        """Returns detections, float32 [rows, 100, 6], the best first; see `boxes.best_boxes` and `Task.answers`."""
        import numpy as np

        from .boxes import COLUMNS, best_boxes

        if not hasattr(outputs, "shape") or outputs.ndim != 3 or outputs.shape[2] != self._columns:
            form = getattr(outputs, "shape", f"{len(outputs)} outputs")
            raise TrialError(
                f"the model gives {form}; boxes of {len(self.class_names)} classes are [rows, candidates, "
                f"{self._columns}]"
            )
        values = np.asarray(outputs, np.float32)
        scores = (1 + np.tanh(values[..., _CORNERS:] / 2)) / 2  # a sigmoid that cannot overflow
        found = np.zeros((len(values), MOST_DETECTIONS, COLUMNS), np.float32)
        for row, candidates, score in zip(found, values, scores, strict=True):
            row[...] = best_boxes(
                candidates[:, :_CORNERS],
                score,
                most=MOST_DETECTIONS,
                least_score=LEAST_SCORE,
                overlap=_OVERLAP,
                considered=_CONSIDERED,
            )
        found[~np.isfinite(values).all(axis=(1, 2))] = np.nan
        return found

    def prediction_arrays(
        self,
        answers: npt.NDArray[np.float32],
        valid: npt.NDArray[np.bool_],
        frames: Sequence[ImageFrames | None],
        image_size: tuple[int, int],
    ) -> dict[str, pa.Array]:
        """Writes the detections in pixels of the source files; see `Task.prediction_arrays`."""
        from .detection_columns import detection_lists

        return {DETECTIONS: detection_lists(answers, valid, frames, image_size, self.class_names)}

    def no_counts(self) -> Counts:
        """Returns the matches of no detections, and no objects of each class."""
        import numpy as np

        from .boxes import no_matches

        return {_MATCHES: no_matches(), _OBJECTS: np.zeros(len(self.class_names), np.int64)}

    def joined(self, parts: Sequence[Counts]) -> Counts:
        """Collects the matches and adds up the objects; see `Task.joined`."""
        import numpy as np

        none = self.no_counts()
        matches = np.concatenate([none[_MATCHES], *(part[_MATCHES] for part in parts)])
        return {_MATCHES: matches, _OBJECTS: sum((part[_OBJECTS] for part in parts), start=none[_OBJECTS])}

    def count(self, outputs: Any, labels: Any, described: Mapping[str, Any]) -> Counts:
        """Matches the detections of a batch with its objects; see `Task.count`."""
        import numpy as np

        from .boxes import COLUMNS, matches_of, no_matches, real_truths

        found = self.answers(outputs, described)
        truths = np.asarray(labels, np.float32)
        if truths.ndim != 3 or truths.shape[2] != COLUMNS or len(truths) != len(found):
            raise TrialError(f"the labels have shape {truths.shape}; boxes are [rows, boxes, {COLUMNS}]")
        matches = [no_matches(), *map(matches_of, found, truths)]
        return {_MATCHES: np.concatenate(matches), _OBJECTS: real_truths(truths, len(self.class_names))}

    def picture(self, images: Any, outputs: Any, labels: Any, described: Mapping[str, Any]) -> bytes | None:
        """Draws detections next to the truth; see `Task.picture`."""
        from .box_picture import draw_detections

        return draw_detections(images, self.answers(outputs, described), labels, self.class_names)

    def metrics(self, counts: Counts) -> dict[str, float]:
        """Averages average precision and recall over the classes; see `Task.metrics`."""
        from .average_precision import mean_precisions

        return mean_precisions(self.precisions(counts))

    def precisions(self, counts: Counts) -> list[ClassPrecision]:
        """Derives average precision and recall of each class from the counts of all rows."""
        from .average_precision import class_precisions

        return class_precisions(counts[_MATCHES], counts[_OBJECTS], self.class_names)

    def warning(self, counts: Counts) -> str | None:
        """Warns of a model that finds nothing anywhere; see `Task.warning`."""
        if len(counts[_MATCHES]) or not counts[_OBJECTS].sum():
            return None
        return (
            f"the model has no detection with a score of at least {LEAST_SCORE} on any validation image, which have "
            f"{counts[_OBJECTS].sum()} objects; train longer, look at the loss and the learning rate, or check that a "
            "Trial of your own gives logits and not probabilities"
        )

    def evaluate(self, counts: Mapping[str, npt.NDArray[np.int64]]) -> TaskEvaluation:
        """Derives average precision and recall of each class, and their curves; see `Task.evaluate`."""
        from .average_precision import curve_at
        from .plots import curves_csv, draw_precision_recall

        classes = self.precisions(dict(counts))
        curves = {each.name: curve_at(counts[_MATCHES], each.label, each.objects) for each in classes if each.objects}
        tables = {"per_class.csv": per_class_csv(classes), "precision_recall.csv": curves_csv(curves)}
        return TaskEvaluation(tables, {"precision_recall.png": lambda: draw_precision_recall(curves)})

    @property
    def _columns(self) -> int:
        return _CORNERS + len(self.class_names)


def per_class_csv(classes: Sequence[ClassPrecision]) -> str:
    """Writes the metrics of each class as CSV; those of a class without objects are empty."""
    columns = ("name", "label", "objects", "detections", "ap50", "ap50_voc07", "ap", "recall50", "recall")
    rows: list[Sequence[str]] = [("class", *columns[1:])]
    for each in classes:
        values = [getattr(each, name) for name in columns]
        rows.append([str(value) if isinstance(value, (str, int)) else number_text(value) for value in values])
    return csv_text(rows)
