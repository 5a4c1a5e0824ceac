"""The evaluation of classification: right and wrong answers by class, calibration, and the answers that changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ...errors import InvalidArgumentError, LakelensError, ModelMismatchError
from ...etl.model import schema
from ...etl.spark.catalog import read_table
from ...etl.versions.changes import class_counts
from ...log.snapshot import open_snapshot
from ...spark.port import kept
from ...table import Table
from ...training.checkpoints.references import ModelRef
from ..scoring.source import ScoredTable, files_of_split
from . import answers
from .comparison import ModelComparison, compare
from .evaluator import Answered, Evaluator, name_of, names_of
from .metrics import SCORES, ModelMetrics, measure
from .plots import draw_comparison, draw_plots, draw_slices, thumbnail
from .report import PAGE, file_name, render_page
from .result import EvaluationResult, Shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WORST_SHOWN = 24
_CHANGED_SHOWN = 12
_TRAIN_SPLIT = "train"


class ClassificationEvaluator(Evaluator):
    """Compares the most probable class of each row with its label."""

    scores: ClassVar[tuple[str, ...]] = SCORES
    less_is_better: ClassVar[frozenset[str]] = frozenset({"ece"})

    def kept(self, rows: DataFrame) -> DataFrame:
        """Keeps the answers, the rank of the true class and the calibration bin; see `Evaluator.kept`."""
        return answers.ranked(rows, len(self.slices))

    def report(self, after: Answered, before: Answered | None) -> tuple[EvaluationResult, dict[str, bytes]]:
        """Evaluates a model, also against an earlier one; see `Evaluator.report`."""
        evaluation, names = self._evaluated(after)
        result = self.result(after.model, evaluation)
        worst = answers.worst_mistakes(after.rows, _WORST_SHOWN)
        mistakes = answers.with_images({"": worst}, self.source)[""]
        plots = draw_plots(evaluation, mistakes)
        for place, column in enumerate(self.slices):
            counts = answers.counts_by_value(after.rows, place)
            values = {value: measure(of_value, names) for value, of_value in counts.items()}
            result.slices[column] = values
            plots[f"slice_{column}"] = draw_slices(values, column, evaluation.accuracy)
        changes: dict[str, list[Shown]] = {}
        pair = ("", "")
        if before is not None:
            pair = names_of(before.model, after.model)
            other, comparison, changes = self._compared(before, after, names)
            result = replace(result, compared=before.model.uri, other=other, comparison=comparison)
            samples = [one for group in changes.values() for one in group]
            plots["comparison"] = draw_comparison(comparison, samples, pair)
        shown = {"plots": plots, "pair": pair, "mistakes": mistakes, "changes": changes, "thumbnail": thumbnail}
        page = render_page("page.html", result, name_of(after.model), **shown)
        return result, {PAGE: page.encode(), **{file_name(name, ".png"): data for name, data in plots.items()}}

    def _compared(
        self, before: Answered, after: Answered, names: Mapping[int, str]
    ) -> tuple[ModelMetrics, ModelComparison, dict[str, list[Shown]]]:
        """Compares two models, and fetches images whose answers changed."""
        evaluation, other_names = self._evaluated(before)
        with kept(answers.paired(before.rows, after.rows)) as pairs:
            counts = answers.pair_counts(pairs)
            trained = (_training_rows(before.model, self.source), _training_rows(after.model, self.source))
            # The longer name of a renamed class shows both names.
            joined = {
                number: max(names.get(number, ""), other_names.get(number, ""), key=len)
                for number in {**other_names, **names}
            }
            comparison = compare(counts, joined, trained)
            return evaluation, comparison, self._changes(pairs, comparison)

    def _evaluated(self, answered: Answered) -> tuple[ModelMetrics, dict[int, str]]:
        """Computes the metrics of one model; also gives the names of the classes by number."""
        model, counts = answered.model, answers.answer_counts(answered.rows)
        labelled = counts.dropna(subset=["label"])
        unlabelled = int(counts["rows"].sum() - labelled["rows"].sum())
        if labelled.empty and self._has_boxes():
            raise ModelMismatchError(
                f"{model.uri} is a model of task classification; the rows of {self.source.name}, split "
                f"{self.source.split}, have boxes instead of labels; evaluate a model of task detection"
            )
        if labelled.empty:
            raise InvalidArgumentError(
                f"{self.source.name}, split {self.source.split}: none of {unlabelled} rows has a label to compare with"
            )
        # A class that the model never answered counts too.
        true_names = answers.names_in(labelled, "label", "label_name")
        known = {int(number): str(name) for number, name in (model.metadata.get("labels") or {}).items()}
        predicted_names = {n: known[n] for n in true_names if n in known}
        predicted_names |= answers.names_in(labelled, "prediction", "predicted_name")
        names = self.numbering(model, true_names, predicted_names)
        return measure(labelled, names, unlabelled), names

    def _has_boxes(self) -> bool:
        if schema.ANNOTATIONS not in self.source.snapshot.schema:
            return False
        rows = read_table(self.source.spark, self.source.location, self.source.version)
        return not rows.where(f"{schema.ANNOTATIONS} is not null").isEmpty()

    def _changes(self, pairs: DataFrame, comparison: ModelComparison) -> dict[str, list[Shown]]:
        was_right, is_right = "(prediction_before <=> label)", "(prediction_after <=> label)"
        conditions = {
            "Wrong before, right now": f"not {was_right} and {is_right}",
            "Right before, wrong now": f"{was_right} and not {is_right}",
            "Wrong before, another wrong answer now": f"not {was_right} and not {is_right} "
            "and not (prediction_before <=> prediction_after)",
        }
        found = {title: answers.changed_answers(pairs, which, _CHANGED_SHOWN) for title, which in conditions.items()}
        # Sorted by gain, the largest first.
        for shown in found.values():
            shown.sort(key=lambda one: one.truth != comparison.most_improved_class)
        return answers.with_images(found, self.source)


def _training_rows(model: ModelRef, source: ScoredTable) -> dict[int, int] | None:
    """Counts a model's training rows by class number; None if its table version cannot be read, or not by split."""
    table, version = model.metadata.get("table"), model.metadata.get("version")
    if table is None or not isinstance(version, int) or model.class_names is None:
        return None
    try:
        snapshot = open_snapshot(Table(str(table), source.snapshot.table.storage_options, version))
        if schema.SPLIT not in snapshot.partition_columns:
            return None
        trained = replace(snapshot, files=files_of_split(snapshot, _TRAIN_SPLIT))
        # By number: a class may have been renamed since; the checkpoint has the names of the version.
        counts = class_counts(trained)
        return {number: counts.get(name, 0) for number, name in enumerate(model.class_names)}
    except LakelensError:
        return None
