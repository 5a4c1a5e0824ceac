"""The counts behind the metrics of classification, and the answers that the page shows; from DataFrames of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...etl.images.stored_image import StoredImage
from ..scoring.source import ScoredTable
from .evaluator import SLICE
from .metrics import CALIBRATION_BINS, TOP_K
from .result import AnyShown, Shown

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, Row

_MOST_VALUES = 50
_KEPT = ("path", "label", "label_name", "prediction", "predicted_name", "probability", "error")


def answer_counts(rows: DataFrame, slices: Sequence[str] = ()) -> pd.DataFrame:
    """Counts the rows with equal labels, answers and values of slices; `metrics.measure` describes the columns."""
    from pyspark.sql import functions

    columns = ("label", "label_name", "prediction", "predicted_name", "true_rank", "bin")
    counted = rows.groupBy(*columns, *slices).agg(
        functions.count(functions.lit(1)).alias("rows"),
        functions.coalesce(functions.sum("probability"), functions.lit(0.0)).alias("confidence"),
    )
    return counted.toPandas()


def names_in(counts: pd.DataFrame, number: str, name: str) -> dict[int, str]:
    """Finds names by number in two columns of counts."""
    known = counts[counts[name].fillna("") != ""].dropna(subset=[number])
    return dict(zip(known[number].astype(int), known[name], strict=True))


def counts_by_value(rows: DataFrame, place: int) -> dict[str, pd.DataFrame]:
    """Counts labelled answers by the values of a slice column; those with the most rows first, at most 50."""
    column = SLICE.format(place)
    counts = answer_counts(rows, [column]).dropna(subset=["label"])
    counts = counts.assign(**{column: counts[column].fillna("(null)")})
    sizes = counts.groupby(column)["rows"].sum()
    kept = sorted(sizes.index, key=lambda value: (-sizes[value], value))[:_MOST_VALUES]
    return {value: counts[counts[column] == value] for value in kept}


def paired(before: DataFrame, after: DataFrame) -> DataFrame:
    """Joins the answers of two models on the same rows: `path`, `label`, `label_name` and both answers."""
    from pyspark.sql import functions

    answer = ("prediction", "predicted_name", "probability")
    old = before.select("path", *(functions.col(name).alias(f"{name}_before") for name in answer))
    new = after.select("path", "label", "label_name", *(functions.col(name).alias(f"{name}_after") for name in answer))
    return new.join(old, "path").where("label is not null")


def pair_counts(pairs: DataFrame) -> pd.DataFrame:
    """Counts the pairs with equal labels and answers; `comparison.compare` describes the columns."""
    from pyspark.sql import functions

    columns = [functions.col("prediction_before").alias("before"), functions.col("prediction_after").alias("after")]
    return pairs.groupBy("label", *columns).agg(functions.count(functions.lit(1)).alias("rows")).toPandas()


def worst_mistakes(rows: DataFrame, count: int) -> list[Shown]:
    """Finds the wrong answers with the highest probability."""
    from pyspark.sql import functions

    wrong = rows.where("label is not null and prediction != label")
    found = wrong.orderBy(functions.desc("probability"), "path").limit(count).collect()
    return [_shown(row, "") for row in found]


def changed_answers(pairs: DataFrame, condition: str, count: int) -> list[Shown]:
    """Finds pairs of answers that meet a condition, in descending order of the second model's probability."""
    from pyspark.sql import functions

    surest = functions.desc(functions.coalesce("probability_after", functions.lit(0.0)))
    found = pairs.where(condition).orderBy(surest, "path").limit(count).collect()
    return [_shown(row, "_before", "_after") for row in found]


def with_images(groups: Mapping[str, Sequence[AnyShown]], source: ScoredTable) -> dict[str, list[AnyShown]]:
    """Fetches the stored images of a few rows, in groups by their titles, in one pass over the table."""
    paths = {one.path for shown in groups.values() for one in shown}
    rows = source.images(paths).collect() if paths else []
    stored = {row["path"]: StoredImage.of_row(row.asDict()) for row in rows}
    return {
        title: [replace(one, image=stored[one.path]) for one in shown if one.path in stored]
        for title, shown in groups.items()
    }


def _shown(row: Row, *models: str) -> Shown:
    """Reads a row of answers, whose columns end differently for each model."""
    answers = []
    for model in models:
        number = row[f"prediction{model}"]
        name = row[f"predicted_name{model}"] or ("error" if number is None else str(number))
        answers.append((name, row[f"probability{model}"]))
    return Shown(row.path, row.label_name or str(row.label), tuple(answers))


def ranked(rows: DataFrame, slices: int) -> DataFrame:
    """Replaces the list of probabilities by the rank of the true class and the calibration bin."""
    from pyspark.sql import functions

    rank = functions.expr("size(filter(probabilities, p -> p > get(probabilities, label)))")
    # A class that the model does not know has no probability.
    knows = functions.expr("label is not null and error is null and label < size(probabilities)")
    # `least` ignores null, and would count rows with an error as answers in the last bin.
    probability, last = functions.col("probability"), functions.lit(CALIBRATION_BINS - 1)
    bins = functions.least(functions.floor(probability * CALIBRATION_BINS), last)
    return rows.select(
        *_KEPT,
        *(SLICE.format(i) for i in range(slices)),
        functions.when(knows, functions.least(rank, functions.lit(max(TOP_K)))).alias("true_rank"),
        functions.when(probability.isNotNull(), bins).cast("int").alias("bin"),
    )
