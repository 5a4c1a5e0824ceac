"""The evaluation of detection: average precision by class, the worst images, and what changed against another model."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ...errors import ModelMismatchError, NotAnImageTableError
from ...etl.model import schema
from ...log.delta_types import type_name
from ...spark.port import kept
from ...training.tasks.detection import DETECTION_SQL, DETECTIONS, LEAST_SCORE
from ..scoring.source import FRAME_TYPE, frame_sql
from . import answers
from .detection_metrics import SCORES, DetectionComparison, DetectionMetrics, compare_detections
from .detection_plots import boxed_jpegs, draw_detection_comparison, draw_detection_plots
from .detection_rows import FRAME, MatchedRows, names_in_annotations, truths_sql, with_matches, with_mistakes
from .evaluator import SLICE, Answered, Evaluator, name_of, names_of
from .report import PAGE, file_name, render_page
from .result import EvaluationResult, ShownBoxes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

logger = logging.getLogger(__name__)

_WORST_SHOWN, _BEST_SHOWN = 12, 6
_CHANGED_SHOWN = 6
_MOST_VALUES = 50
_DEFAULT_SCORE = 0.5


class DetectionEvaluator(Evaluator):
    """Compares the detections of each image with its annotations."""

    scores: ClassVar[tuple[str, ...]] = SCORES

    def columns(self) -> dict[str, tuple[str, Column]]:
        """Adds the annotations, and the frames of both; see `Evaluator.columns`."""
        from pyspark.sql import functions

        declared = self.source.snapshot.schema.get(schema.ANNOTATIONS)
        if declared is None:
            raise ModelMismatchError(
                f"{self.source.name} has no column {schema.ANNOTATIONS!r}, so a model of task detection has nothing to "
                "be compared with; ingest with layout voc, coco or manifest, or evaluate a model of task classification"
            )
        truths = truths_sql(schema.ANNOTATIONS, declared)
        if truths is None:
            raise NotAnImageTableError(
                f"{self.source.name}: column {schema.ANNOTATIONS!r} is {type_name(declared)}; task detection needs an "
                "array of structs with label, xmin, ymin, xmax, ymax there; ingest with layout voc, coco or manifest"
            )
        frame = frame_sql(self.source.snapshot.schema, self.source.columns.image)
        return {
            **super().columns(),
            schema.ANNOTATIONS: (schema.ANNOTATIONS_TYPE, functions.expr(truths)),
            FRAME: (FRAME_TYPE, functions.expr(frame)),
        }

    def kept(self, rows: DataFrame) -> DataFrame:
        """Keeps detections and annotations in pixels of the stored image, and their matches; see `Evaluator.kept`."""
        passed = dict.fromkeys(("path", "error", *self._slice_columns), "STRING")
        boxes = {DETECTIONS: DETECTION_SQL, schema.ANNOTATIONS: schema.ANNOTATIONS_TYPE}
        return with_matches(rows, {**passed, **boxes})

    def report(self, after: Answered, before: Answered | None) -> tuple[EvaluationResult, dict[str, bytes]]:
        """Evaluates a model, also against an earlier one; see `Evaluator.report`."""
        evaluation, matched, names = self._evaluated(after)
        result = self.result(after.model, evaluation)
        least_score = _least_score(evaluation)
        plots = draw_detection_plots(evaluation, least_score)
        for column, name in zip(self._slice_columns, self.slices, strict=True):
            values = matched.values_of(column, _MOST_VALUES)
            result.slices[name] = {value: matched.where(column, value).measure(names) for value in values}
        images = self._extremes(with_mistakes(after.rows, least_score), evaluation)
        changes: dict[str, list[ShownBoxes]] = {}
        files: dict[str, bytes] = {}
        pair = ("", "")
        if before is not None:
            pair = names_of(before.model, after.model)
            other, comparison, changes = self._compared(before, after, evaluation)
            result = replace(result, compared=before.model.uri, other=other, comparison=comparison)
            plots["comparison"] = draw_detection_comparison(comparison, pair)
        shown = {
            "plots": plots,
            "pair": pair,
            "images": images,
            "changes": changes,
            "jpegs": boxed_jpegs,
            "least_score": least_score,
        }
        page = render_page("detection_page.html", result, name_of(after.model), **shown)
        for title, group in images.items():
            for place, one in enumerate(group):
                for jpeg in boxed_jpegs(one):
                    files[f"{title.partition(' ')[0].lower()}_{place:02d}.jpg"] = jpeg
        return result, {PAGE: page.encode(), **files, **{file_name(name, ".png"): data for name, data in plots.items()}}

    @property
    def _slice_columns(self) -> list[str]:
        return [SLICE.format(i) for i in range(len(self.slices))]

    def _evaluated(self, answered: Answered) -> tuple[DetectionMetrics, MatchedRows, dict[int, str]]:
        """Computes the metrics of one model; also gives the matches and the names of the classes by number."""
        model, matched = answered.model, MatchedRows.collect(answered.rows, self._slice_columns)
        names = self._names(answered)
        evaluation = matched.measure(names)
        if not evaluation.rows:
            raise ModelMismatchError(
                f"{self.source.name}, split {self.source.split}: none of {evaluation.unlabelled} rows has annotations "
                f"to compare {model.uri}, a model of task detection, with; ingest with layout voc, coco or manifest, "
                "or evaluate a model of task classification"
            )
        if evaluation.objects and matched.matches.empty:
            logger.warning(
                "%s has no detection with a score of at least %g in any of %d images, which have %d objects; was it "
                "trained long enough, and on images like these?",
                model.uri,
                LEAST_SCORE,
                evaluation.rows,
                evaluation.objects,
            )
        return evaluation, matched, names

    def _names(self, answered: Answered) -> dict[int, str]:
        model = answered.model
        predicted = {int(number): str(name) for number, name in (model.metadata.get("labels") or {}).items()}
        return self.numbering(model, names_in_annotations(answered.rows), predicted)

    def _extremes(self, rows: DataFrame, evaluation: DetectionMetrics) -> dict[str, list[ShownBoxes]]:
        """Finds the images with the most mistakes, and those with the fewest that have the most objects."""
        from pyspark.sql import functions

        mistakes, objects = functions.expr("missed + invented"), functions.expr("size(objects)")
        annotated = rows.where("annotated")
        few = evaluation.rows // 2  # of few images, each is shown once
        groups = {
            "Worst images": annotated.orderBy(mistakes.desc(), objects, "path").limit(
                min(_WORST_SHOWN, evaluation.rows - few)
            ),
            "Best images": annotated.orderBy(mistakes, objects.desc(), functions.desc("path")).limit(
                min(_BEST_SHOWN, few)
            ),
        }
        shown = {
            title: [
                ShownBoxes(row.path, row[schema.ANNOTATIONS], (row[DETECTIONS] or [],), (_mistakes(row, ""),))
                for row in found.collect()
            ]
            for title, found in groups.items()
        }
        return answers.with_images(shown, self.source)

    def _compared(
        self, before: Answered, after: Answered, evaluation: DetectionMetrics
    ) -> tuple[DetectionMetrics, DetectionComparison, dict[str, list[ShownBoxes]]]:
        """Compares two models, and fetches images that changed most."""
        from pyspark.sql import functions

        other, _, _ = self._evaluated(before)
        columns = (DETECTIONS, "missed", "invented")
        earlier = with_mistakes(before.rows, _least_score(other))
        earlier = earlier.select("path", *(functions.col(name).alias(f"{name}_before") for name in columns))
        pairs = with_mistakes(after.rows, _least_score(evaluation)).where("annotated").join(earlier, "path")
        gain = functions.expr("missed_before + invented_before - missed - invented")
        with kept(pairs.withColumn("gain", gain)) as pairs:
            counts = pairs.selectExpr("count(*) rows", "count_if(gain > 0) fixed", "count_if(gain < 0) broken").first()
            rows, fixed, broken = (0, 0, 0) if counts is None else counts
            comparison = compare_detections(other, evaluation, rows=rows, fixed=fixed, broken=broken)
            changes = {
                "Fewer mistakes now": self._changed(pairs.where("gain > 0").orderBy(functions.desc("gain"), "path")),
                "More mistakes now": self._changed(pairs.where("gain < 0").orderBy("gain", "path")),
            }
            return other, comparison, answers.with_images(changes, self.source)

    def _changed(self, pairs: DataFrame) -> list[ShownBoxes]:
        return [
            ShownBoxes(
                row.path,
                row[schema.ANNOTATIONS],
                (row[f"{DETECTIONS}_before"] or [], row[DETECTIONS] or []),
                (_mistakes(row, "_before"), _mistakes(row, "")),
            )
            for row in pairs.limit(_CHANGED_SHOWN).collect()
        ]


def _least_score(evaluation: DetectionMetrics) -> float:
    """The score from which on detections count as answers: where F1 is highest, cut to three digits."""
    best = evaluation.best_point
    return _DEFAULT_SCORE if best is None else max(LEAST_SCORE, math.floor(best.score * 1000) / 1000)


def _mistakes(row: Row, when: str) -> str:
    return f"{row[f'missed{when}']} missed, {row[f'invented{when}']} invented"
