"""Scores an image table as a stream: in each micro-batch the rows of the latest version that the model has not scored.

Delta's stream only reports that there are new files; `docs/decisions/scoring-streams.md` gives the reasons.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError, SessionError, StreamCheckpointError
from ...etl.model import schema
from ...etl.spark.catalog import hadoop_path, is_delta_table, read_table, sql_name
from ...locations import absolute_path
from ...options import check_names
from ...spark.port import is_connect
from ...table import Table, version_of
from ..model.failures import typed_failures
from .run import ScoringRun
from .score import ScoreOptions, ScoreResult, complete, open_run, result_of
from .source import ScoredTable, open_scored_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

    from ...spark.session import SessionSource

BEGINNING, LATEST = "beginning", "latest"
# In the checkpoint's folder: a Delta table of the rows from before the start, whose commit describes the stream.
_BEFORE = "lakelens_before"
_FIX = "give a separate folder: checkpoint=... (--checkpoint)"
# A file that was rewritten counts as a new one. A log that was cleaned lacks nothing: no file is read.
_OPTIONS = {"ignoreChanges": "true", "failOnDataLoss": "false", "maxFilesPerTrigger": str(2**31 - 1)}


def score_stream(
    spark: SessionSource,
    model: str | Path,
    table: str | Path,
    predictions: str | Path | None = None,
    *,
    checkpoint: str | Path,
    start: int | str = BEGINNING,
    trigger_s: float | None = None,
    on_batch: Callable[[ScoreResult], None] | None = None,
    **options: Unpack[ScoreOptions],
) -> ScoreResult:
    """Scores the rows that an image table gets, as a Structured Streaming query.

    A micro-batch scores the rows of the table's latest version that this model (by its checkpoint's digest) has scored
    in no version: each row once, whatever ends the stream. A changed image is a new row. Predictions of deleted rows
    and of earlier images stay. A stream does not copy predictions into later versions, as `score` does.

    Args:
        spark: As for `score`; not a Spark Connect session.
        model: As for `score`, resolved when the stream starts. Another model needs another checkpoint.
        table: The image table, without a version. It needs the column `key`.
        predictions: As for `score`.
        checkpoint: Folder of this stream alone, on storage that driver and executors share.
        start: The first rows of a new checkpoint: "beginning" scores all rows, "latest" those that come after this
            call, a version (number or pin's name) its new rows and all later ones.
        trigger_s: Seconds between two looks at the table; the call then runs until it is interrupted. None scores the
            existing rows and returns (Spark's `availableNow`).
        on_batch: Called after each micro-batch with the result so far.
        **options: As for `score`.

    Raises:
        StreamCheckpointError: If the checkpoint belongs to another model or table, or was started in another way.
        SessionError: If it is a Spark Connect session.
        LakelensError: As `score` does; what is committed stays, and the next call continues.

    Examples:
        >>> result = lakelens.score_stream(
        ...     spark, f"runs:/{run.run_id}", "tables/photos", "tables/predictions", checkpoint="streams/photos"
        ... )
        >>> result.scored
        0
    """
    started = time.perf_counter()
    check_names("score_stream", options, ScoreOptions.__annotations__)
    folder = _checked(checkpoint, trigger_s, table)
    first = start if start == BEGINNING else version_of(start)
    run = open_run("lakelens.score_stream", spark, model, table, predictions, **options)
    _check_run(run, folder)
    run.tally.version, run.tally.total = run.results.state().version, run.source.row_count()

    def micro_batch() -> None:
        nonlocal run
        table, split, columns = run.source.snapshot.table, run.source.split, run.source.columns
        run = replace(run, source=open_scored_table(run.spark, table.at(None), split, columns=columns))
        complete(run)
        if on_batch is not None:
            on_batch(result_of(run, started))

    with typed_failures(run.source.name):
        run.before = _rows_before(run, folder, first)
        _stream(run, folder, trigger_s, micro_batch)
    return result_of(run, started)


def _stream(run: ScoringRun, folder: str, trigger_s: float | None, micro_batch: Callable[[], None]) -> None:
    """Runs the query to its end."""
    from pyspark.errors import StreamingQueryException

    failed: list[Exception] = []

    def keep_error(_rows: DataFrame, _number: int) -> None:
        try:
            micro_batch()
        except Exception as error:  # Spark keeps only its text
            failed.append(error)
            raise

    rows = run.spark.readStream.format("delta").options(**_OPTIONS).load(run.source.location)
    writer = rows.writeStream.option("checkpointLocation", folder).foreachBatch(keep_error)
    if trigger_s is None:
        query = writer.trigger(availableNow=True).start()
    else:
        query = writer.trigger(processingTime=f"{round(trigger_s * 1000)} milliseconds").start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise (failed[0] if failed else error) from None
    finally:
        with suppress(Exception):  # an interrupted command has ended the JVM
            query.stop()


def _checked(checkpoint: str | Path, trigger_s: float | None, table: str | Path) -> str:
    """Checks what needs no session; returns the checkpoint's location."""
    if trigger_s is not None and not 0 < trigger_s < float("inf"):
        raise InvalidArgumentError(f"trigger_s={trigger_s!r}: give seconds above 0, or None")
    if Table.of(table).version is not None:
        raise InvalidArgumentError(
            f"{str(table)!r} names a version, and a stream scores all that come; name the first: start=... (--start)"
        )
    if not isinstance(checkpoint, (str, Path)):
        raise InvalidArgumentError(f"checkpoint={checkpoint!r}: give a folder for this stream alone (--checkpoint)")
    return absolute_path(checkpoint).rstrip("/")


def _check_run(run: ScoringRun, folder: str) -> None:
    """Checks the arguments that only a stream has."""
    if is_connect(run.spark):
        raise SessionError(
            "this is a Spark Connect session, whose server would run the micro-batches without this process; stream on "
            "the cluster's driver (spark-submit, a notebook on a dedicated cluster), or call score for each version"
        )
    if not run.source.has_key:
        raise InvalidArgumentError(
            f"{run.source.name} has no column {run.source.columns.key!r}, so a stream cannot know the rows that it has "
            "scored; name a column that changes when the image changes: key=... (--key)"
        )
    if folder in (run.source.location, run.results.location):
        raise InvalidArgumentError(f"checkpoint={folder!r} is a table; give a folder for this stream alone")


def _rows_before(run: ScoringRun, folder: str, start: object) -> DataFrame:
    """Gives path and key of the rows from before a stream's start; writes them when it starts for the first time."""
    source, spark, place = run.source, run.spark, f"{folder}/{_BEFORE}"
    stream = {
        "model": f"{run.model.uri} ({run.model.digest})",
        "table": f"{source.location} (id {source.snapshot.table_id})",
        "predictions": run.results.location,
        "split": source.split,
        "key": f"{source.columns.path}, {source.columns.key}",
        "start": LATEST if start is None else str(start),
    }
    if is_delta_table(spark, place):
        history = spark.sql(f"DESCRIBE HISTORY {sql_name(place)}").select("userMetadata").collect()
        _check_same(folder, json.loads(history[-1][0]), stream, run.model.digest)
        return read_table(spark, place)
    path, files = hadoop_path(spark, f"{folder}/metadata")
    if files.exists(path):
        raise StreamCheckpointError(f"{folder} is the checkpoint of a stream that score_stream did not start; {_FIX}")
    rows = _before(source, start).select(schema.PATH, schema.CONTENT_HASH)
    rows.write.format("delta").option("userMetadata", json.dumps(stream)).save(place)
    return read_table(spark, place)


def _check_same(folder: str, known: Mapping[str, Any], given: Mapping[str, Any], digest: str) -> None:
    """Compares a checkpoint's stream with the new one; a model may have several names."""
    same_model = str(known["model"]).endswith(f" ({digest})")
    differing = [name for name in given if known[name] != given[name] and not (name == "model" and same_model)]
    if differing:
        told = "; ".join(f"its {name} is {known[name]}, and {given[name]} was given" for name in differing)
        raise StreamCheckpointError(f"{folder} is the checkpoint of another stream: {told}. To score these, {_FIX}")


def _before(source: ScoredTable, start: object) -> DataFrame:
    """Reads the rows from before a start: "beginning", a version, or None for those that come later."""
    if start is None:
        return source.rows()
    table = source.snapshot.table
    first = 0 if start == BEGINNING else table.at(start).snapshot().version
    if first == 0:
        return source.rows().limit(0)
    return open_scored_table(source.spark, table.at(first - 1), source.split, columns=source.columns).rows()
