"""Metrics per class of a predictions table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError, PredictionsSchemaError
from ...etl.spark.catalog import path_of, read_table
from ...locations import absolute
from ..scoring.predictions import require_predictions
from .metrics import Evaluation, evaluate_counts, one_numbering

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# More than this many scorings are not listed one by one.
_LISTED = 10


def evaluate(
    spark: SparkSession,
    predictions: str | Path,
    *,
    version: int | None = None,
    digest: str | None = None,
    table: str | None = None,
    table_version: int | None = None,
    split: str | None = None,
) -> Evaluation:
    """Compares predictions with labels.

    Args:
        spark: The session.
        predictions: The predictions table.
        version: Version of the predictions table; None is the latest.
        digest: Only predictions of the checkpoint with this digest.
        table: Only predictions for this image table.
        table_version: Only predictions for this version of the image table.
        split: Only this split.

    Raises:
        NotADeltaTableError: If there is no predictions table.
        VersionNotFoundError: If it has no such version.
        PredictionsSchemaError: If the table lacks columns of predictions, or if the model numbers its classes otherwise
            than the image table does, so that equal numbers are not equal classes.
        InvalidArgumentError: If what is left belongs to several scorings, which are never mixed, or is nothing.
    """
    location = absolute(predictions)
    require_predictions(spark, location, version)
    rows = read_table(spark, location, version)
    kept = {
        "checkpoint_digest": digest,
        "table": None if table is None else absolute(path_of(spark, absolute(table))).rstrip("/"),
        "version": table_version,
        "split": split,
    }
    for column, value in kept.items():
        if value is not None:
            rows = rows.where(rows[column] == value)
    _require_one_scoring(rows, location)
    counted = rows.groupBy("label", "label_name", "prediction", "predicted_name").count().collect()
    counts: dict[tuple[int, int | None], int] = {}
    unlabelled = 0
    for row in counted:
        if row.label is None:
            unlabelled += row["count"]
            continue
        key = (row.label, row.prediction)
        counts[key] = counts.get(key, 0) + row["count"]
    labelled = [row for row in counted if row.label is not None]
    true_names = {row.label: row.label_name for row in labelled if row.label_name}
    predicted_names = {row.prediction: row.predicted_name for row in labelled if row.predicted_name}
    try:
        names = one_numbering(true_names, predicted_names)
    except PredictionsSchemaError as error:
        raise PredictionsSchemaError(f"{location}: {error}") from None
    return evaluate_counts(counts, names, unlabelled)


def _require_one_scoring(rows: DataFrame, location: str) -> None:
    found = rows.select("checkpoint_digest", "table", "version").distinct().limit(_LISTED).collect()
    if not found:
        raise InvalidArgumentError(f"{location}: no row fits these filters; leave some out, or score first")
    if len(found) > 1:
        listed = "; ".join(
            f"digest={row.checkpoint_digest} table={row.table} table_version={row.version}" for row in found
        )
        raise InvalidArgumentError(
            f"{location} holds several scorings, which are not mixed; choose one by digest, table and table_version: "
            f"{listed}"
        )
