"""Evaluates a model on one version of an image table, alone or against another model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError, LakelensError, PredictionsSchemaError
from ...etl.model import schema
from ...etl.versions.classes import class_counts
from ...extras import require
from ...locations import require_writable
from ...options import named_options
from ...spark.session import SessionSource, opened, require_delta, require_driver
from ...table import Table
from ...training.checkpoints.references import ModelRef, resolve_model
from ..model.failures import typed_failures
from ..model.predictor import DEFAULT_BATCH_BYTES, check_batch_bytes
from ..model.user_code import UserCode, user_code
from ..scoring.mismatch import is_same_table
from ..scoring.predictions import predictions_location
from ..scoring.score import check_model, score
from ..scoring.source import ScoredTable, SourceColumns, check_by_log, files_of_split, open_scored_table
from . import answers
from .comparison import ModelComparison, compare
from .metrics import ModelMetrics, measure, one_numbering
from .page import evaluation_page
from .plots import draw_comparison, draw_plots, draw_slices
from .record import CHANGES, PAGE, file_name, record_evaluation, write_files
from .result import EvaluationResult, Shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_SPLIT = "test"
_WORST_SHOWN = 24
_CHANGED_SHOWN = 12
_TRAIN_SPLIT = "train"


@named_options
def evaluate(
    spark: SessionSource,
    model: str | Path,
    table: str | Path,
    version: int | str | datetime | None = None,
    *,
    split: str | None = DEFAULT_SPLIT,
    compare: str | Path | None = None,
    slices: Sequence[str] = (),
    predictions: str | Path | None = None,
    output: str | Path | None = None,
    record: bool = True,
    tracking_uri: str | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    custom_objects: Mapping[str, Any] | None = None,
    path_column: str = "path",
    image_column: str = "image",
    label_column: str = "label",
    key: str = "content_hash",
    storage_options: Mapping[str, str] | None = None,
) -> EvaluationResult:
    """Compares a model's answers with the labels of one table version.

    Metrics: accuracy, precision, recall and F1 per class, confusion matrix, top-k, calibration. `compare` adds
    the answers that changed between the two models, and the class that gained most. The result is an HTML page with PNG
    files, in `output` and in the run that trained the model. With `compare`, `changes.parquet` next to the page lists
    all rows whose answer changed.

    Args:
        spark: A session with Delta, or a function that opens one; it is called after models and table are found.
        model: `runs:/<run id>`, `models:/<name>@<alias>`, `experiment:<id>` or a checkpoint's path (`resolve_model`).
        table: The image table: path, URI or catalog name; `table@version` names the version too.
        version: Number, timestamp, pin's name, or None or "latest".
        split: Only this split; None takes all rows.
        compare: The earlier model, in the same forms.
        slices: Columns of the table; the metrics are computed separately for each value of them.
        predictions: A predictions table for the answers: rows that the models have scored before are not scored
            again. Without it the models run on all rows, and the answers are not stored.
        output: Folder for the page and its PNG files; None writes none.
        record: Whether page, PNG files and metrics go into the model's MLflow run, if the model was found through one.
        tracking_uri: MLflow tracking URI.
        batch_bytes: Most bytes of one batch of float32 input.
        custom_objects: Classes and functions by name that the model needs and neither Keras nor its run's recorded code
            has.
        path_column: Column that names a row.
        image_column: Column with the stored image, binary.
        label_column: Column with the number of the true class.
        key: As for `score`; the same for every call with these `predictions`.
        storage_options: Access to an object store for reading Delta logs, under delta-rs' names.

    Raises:
        ModelNotFoundError: If a model has no checkpoint.
        NotADeltaTableError, VersionNotFoundError, NotAnImageTableError: If the table does not exist or is not suitable.
        InvalidArgumentError: If the split or a slice column does not exist, no row has a label, `output` cannot be
            written, or `predictions` were scored with another key.
        PredictionsSchemaError: If a model numbers its classes differently from the table.
        ModelMismatchError: If a model needs a class that neither Keras, its run's code nor `custom_objects` has.
        MissingDependencyError: If matplotlib or scikit-learn is not installed.
        TrackingError: If the store does not take the result.
    """
    require("lakelens.evaluate", "pyspark", "matplotlib", "sklearn")
    check_batch_bytes(batch_bytes)
    require_driver(spark)
    named = Table.of(table, version, storage_options)
    columns = SourceColumns(path_column, image_column, label_column, key)
    asked = [resolve_model(one, tracking_uri) for one in (model, compare) if one is not None]
    snapshot = check_by_log(named, split, columns)
    if snapshot is not None:
        answers.check_slices(f"{snapshot.location}@{snapshot.version}", snapshot.schema, slices)
    if predictions is not None:
        predictions_location(predictions, named)
    if output is not None:
        require_writable("output", Path(output))
    coded = [(one, user_code(one, custom_objects)) for one in asked]
    spark = opened(spark)
    require_delta(spark)
    source = open_scored_table(spark, named, split, columns=columns, snapshot=snapshot)
    work = _Evaluating(source, tuple(slices), predictions, tracking_uri, batch_bytes)
    with ExitStack() as stack, typed_failures(source.name):
        answered = [(one, stack.enter_context(work.answers(one, code))) for one, code in coded]
        result, files = work.report(answered[0], answered[1] if compare is not None else None)
    if output is not None:
        write_files(Path(output), files)
        folder = Path(output).absolute()
        result = replace(result, page=str(folder / PAGE), changes=str(folder / CHANGES) if CHANGES in files else None)
    if record:
        result = replace(result, artifacts=record_evaluation(asked[0], result, files, *asked[1:]))
    return result


@dataclass(frozen=True)
class _Evaluating:
    """One call of `evaluate`, with the table resolved."""

    source: ScoredTable
    slices: tuple[str, ...]
    predictions: str | Path | None
    tracking_uri: str | None
    batch_bytes: int

    @contextmanager
    def answers(self, model: ModelRef, code: UserCode) -> Iterator[DataFrame]:
        """Gives the answers of a model on the rows."""
        source = self.source
        if self.predictions is None:
            check_model(model, source, strict=False)
            with answers.predicted_now(model, source, self.slices, self.batch_bytes, code) as rows:
                yield rows
            return
        scored = score(
            source.spark,
            model.uri,
            source.location,
            self.predictions,
            source.version,
            split=source.split,
            tracking_uri=self.tracking_uri,
            batch_bytes=self.batch_bytes,
            custom_objects=code.objects,
            path_column=source.columns.path,
            image_column=source.columns.image,
            label_column=source.columns.label,
            key=source.columns.key,
            storage_options=source.snapshot.table.storage_options,
        )
        if scored.version is None:
            raise InvalidArgumentError(f"{source.name}, split {source.split}: no row to evaluate")
        rows = answers.scored_before(scored.predictions, scored.version, model, source, self.slices).persist()
        try:
            yield rows
        finally:
            rows.unpersist()

    def report(
        self, model: tuple[ModelRef, DataFrame], before: tuple[ModelRef, DataFrame] | None
    ) -> tuple[EvaluationResult, dict[str, bytes]]:
        """Evaluates a model, also against an earlier one; returns the numbers, the page and the PNG files."""
        result, names = self.measured(*model)
        mistakes = answers.with_images(answers.worst_mistakes(model[1], _WORST_SHOWN), self.source)
        plots = draw_plots(result.evaluation, mistakes)
        for column, values in result.slices.items():
            plots[f"slice_{column}"] = draw_slices(values, column, result.evaluation.accuracy)
        changes: dict[str, list[Shown]] = {}
        files: dict[str, bytes] = {}
        if before is not None:
            result, changes, files[CHANGES] = self.compared(before, model, result, names)
        if before is not None and result.comparison is not None:
            shown = [one for group in changes.values() for one in group]
            plots["comparison"] = draw_comparison(result.comparison, shown, _names_of(before[0], model[0]))
        page = evaluation_page(result, plots, mistakes, changes)
        return result, {PAGE: page.encode(), **files, **{file_name(name, ".png"): data for name, data in plots.items()}}

    def measured(self, model: ModelRef, rows: DataFrame) -> tuple[EvaluationResult, dict[int, str]]:
        """Computes the metrics of one model; also gives the names of the classes by number."""
        evaluation, names = self._evaluated(model, rows)
        by_value = {
            name: {value: measure(counts, names) for value, counts in answers.counts_by_value(rows, place).items()}
            for place, name in enumerate(self.slices)
        }
        source, trained_on = self.source, None
        if model.metadata.get("table") is not None:
            trained_on = f"{model.metadata['table']}@{model.metadata.get('version')}"
        result = EvaluationResult(
            model=model.uri,
            digest=model.digest,
            run_id=model.run_id,
            trained_on=trained_on,
            table=source.location,
            version=source.version,
            split=source.split,
            evaluation=evaluation,
            slices=by_value,
        )
        return result, names

    def compared(
        self,
        before: tuple[ModelRef, DataFrame],
        after: tuple[ModelRef, DataFrame],
        result: EvaluationResult,
        names: Mapping[int, str],
    ) -> tuple[EvaluationResult, dict[str, list[Shown]], bytes]:
        """Adds the comparison, fetches images whose answers changed, and lists all such rows as a Parquet file."""
        evaluation, other_names = self._evaluated(*before)
        pairs = answers.paired(before[1], after[1]).persist()
        try:
            counts = answers.pair_counts(pairs)
            trained = (_training_rows(before[0], self.source), _training_rows(after[0], self.source))
            # The longer name of a renamed class shows both names.
            joined = {
                number: max(names.get(number, ""), other_names.get(number, ""), key=len)
                for number in {**other_names, **names}
            }
            comparison = compare(counts, joined, trained)
            changes, listed = self._changes(pairs, comparison), answers.changes_file(pairs)
        finally:
            pairs.unpersist()
        return replace(result, compared=before[0].uri, other=evaluation, comparison=comparison), changes, listed

    def _evaluated(self, model: ModelRef, rows: DataFrame) -> tuple[ModelMetrics, dict[int, str]]:
        counts = answers.answer_counts(rows)
        labelled = counts.dropna(subset=["label"])
        unlabelled = int(counts["rows"].sum() - labelled["rows"].sum())
        if labelled.empty:
            raise InvalidArgumentError(
                f"{self.source.name}, split {self.source.split}: none of {unlabelled} rows has a label to compare with"
            )
        try:
            is_own = is_same_table(model.metadata.get("table"), self.source.location)
            # A class that the model never answered counts too.
            true_names = answers.names_in(labelled, "label", "label_name")
            known = {int(number): str(name) for number, name in (model.metadata.get("labels") or {}).items()}
            predicted_names = {n: known[n] for n in true_names if n in known}
            predicted_names |= answers.names_in(labelled, "prediction", "predicted_name")
            names = one_numbering(true_names, predicted_names, is_own=is_own)
        except PredictionsSchemaError as error:
            raise PredictionsSchemaError(f"{model.uri} on {self.source.name}: {error}") from None
        return measure(labelled, names, unlabelled), names

    def _changes(self, pairs: DataFrame, comparison: ModelComparison) -> dict[str, list[Shown]]:
        right_before = "prediction_before <=> label"
        right_after = "prediction_after <=> label"
        found = {
            "Wrong before, right now": answers.changed_answers(
                pairs, f"not ({right_before}) and {right_after}", _CHANGED_SHOWN
            ),
            "Right before, wrong now": answers.changed_answers(
                pairs, f"{right_before} and not ({right_after})", _CHANGED_SHOWN
            ),
            "Wrong before, another wrong answer now": answers.changed_answers(
                pairs,
                f"not ({right_before}) and not ({right_after}) and not (prediction_before <=> prediction_after)",
                _CHANGED_SHOWN,
            ),
        }
        # Sorted by gain, the largest first.
        for shown in found.values():
            shown.sort(key=lambda one: one.truth != comparison.mended_class)
        return {title: answers.with_images(shown, self.source) for title, shown in found.items()}


def _names_of(before: ModelRef, after: ModelRef) -> tuple[str, str]:
    """Names two models by the versions that they were trained on, if these differ."""
    versions = [model.metadata.get("version") for model in (before, after)]
    if None not in versions and versions[0] != versions[1]:
        return f"version {versions[0]}", f"version {versions[1]}"
    return before.uri, after.uri


def _training_rows(model: ModelRef, source: ScoredTable) -> dict[int, int] | None:
    """Counts a model's training rows by class number; None if its table version cannot be read, or not by split."""
    table, version = model.metadata.get("table"), model.metadata.get("version")
    if table is None or not isinstance(version, int) or model.class_names is None:
        return None
    try:
        snapshot = Table(str(table), source.snapshot.table.storage_options, version).snapshot()
        if schema.SPLIT not in snapshot.partition_columns:
            return None
        trained = replace(snapshot, files=files_of_split(snapshot, _TRAIN_SPLIT))
        # By number: a class may have been renamed since; the checkpoint has the names of the version.
        counts = class_counts(trained)
        return {number: counts.get(name, 0) for number, name in enumerate(model.class_names)}
    except LakelensError:
        return None
