"""The answers of a model on the rows of one table version, as a DataFrame: predicted now, or read from a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ...etl.spark.catalog import read_table
from ...progress import image_progress
from ...spark.port import counter, kept, parallelism
from ...training.checkpoints.references import ModelRef
from ..model.shipping import prediction_task, ship
from ..model.user_code import UserCode
from ..scoring.predictions import PASSED_DDL
from ..scoring.remaining import in_version, same_row
from .evaluator import Evaluator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@contextmanager
def predicted_now(
    model: ModelRef, evaluator: Evaluator, batch_bytes: int, code: UserCode, engine: str | None
) -> Iterator[DataFrame]:
    """Runs a model over a table version; the answers stay with the executors until the body ends."""
    source, columns = evaluator.source, evaluator.columns()
    spark = source.spark
    row_count = source.row_count()
    shipped = ship(spark, model, batch_bytes=batch_bytes, code=code, engine=engine)
    ddl = ", ".join([PASSED_DDL, *(f"{name} {kind}" for name, (kind, _) in columns.items()), shipped.ddl])
    done = counter(spark)
    with ExitStack() as stack:
        with image_progress(f"evaluate {source.name}", row_count, lambda: (done.value, 0)) as count_file:
            predicted = source.image_files(batch_bytes).predicted(
                source.rows([made.alias(name) for name, (_, made) in columns.items()]),
                prediction_task(shipped, count_file, done),
                ddl,
                count=row_count,
                image_pixels=model.input_shape[0] * model.input_shape[1],
                slots=parallelism(spark),
            )
            rows = stack.enter_context(kept(evaluator.kept(predicted)))
            rows.count()
        yield rows


def scored_before(predictions: str, version: int, model: ModelRef, evaluator: Evaluator) -> DataFrame:
    """Reads a model's answers from a predictions table that holds them."""
    source, columns = evaluator.source, evaluator.columns()
    rows = read_table(source.spark, predictions, version)
    rows = rows.where(in_version(source, model.digest))
    # An earlier table at this location may have had other images under this version's number.
    rows = rows.alias("rows").join(source.rows().alias("keys"), same_row("rows", "keys"), "left_semi")
    if columns:
        values = source.rows([made.alias(name) for name, (_, made) in columns.items()]).select("path", *columns)
        rows = rows.join(values, "path", "left")
    return evaluator.kept(rows)
