"""A landing folder as a stream: the files that it holds now become one commit per batch of bounded size.

The table is the only checkpoint: that of a Spark stream knows files by path alone, and may disagree with the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import EmptySourceError, TableConflictError
from ...options import whole_number
from ...table import Table
from ..spark.failures import RETRIES, naming_failures
from .near_duplicates import find_across_splits
from .prepare import Prepared, check_classes, open_transaction, prepare
from .results import IngestRequest, IngestResult, StreamResult
from .run import run_prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@naming_failures
def ingest_available(
    spark: SparkSession,
    table: Table,
    request: IngestRequest,
    max_files: int,
    on_batch: Callable[[IngestResult], None] | None = None,
) -> StreamResult:
    """Ingests the files that a landing folder holds now, in batches of bounded size and one commit each."""
    whole_number("max_files", max_files, 1)
    done: list[IngestResult] = []
    attempts = 0
    while True:
        RETRIES.wait(attempts)
        known_of_ours = sum(result.stored + result.quarantined for result in done)
        before = len(done)
        try:
            with prepare(spark, table, request) as prepared:
                check_classes(prepared)
                for result in _batches(prepared, max_files):
                    # After another writer's commit, the records contain what this call has done itself.
                    own = min(known_of_ours, result.skipped)
                    known_of_ours -= own
                    skipped, rows_in = result.skipped - own, result.rows_in - own
                    # Files of a landing folder come and go: a class without any has not vanished.
                    done.append(replace(result, skipped=skipped, rows_in=rows_in, vanished_classes=()))
                    if on_batch is not None:
                        on_batch(done[-1])
            return _with_findings(spark, table, request, StreamResult.of(done))
        except EmptySourceError:
            transaction = open_transaction(spark, table)
            version = None if transaction is None else transaction.version
            return _with_findings(spark, table, request, StreamResult.of(done, version))
        except TableConflictError as error:
            attempts = 1 if len(done) > before else attempts + 1
            if attempts == RETRIES.attempts:
                raise TableConflictError(
                    f"{table}: other writers kept committing first; run the stream again when they are done. "
                    f"{len(done)} batches are stored. Last of {attempts} attempts: {error}"
                ) from error


def _batches(prepared: Prepared, max_files: int) -> Iterator[IngestResult]:
    """Runs the parts of one plan, each on top of the version that the one before has made."""
    version = prepared.version
    for number, plan in enumerate(prepared.plan.batches(max_files)):
        part = prepared
        if number:
            transaction = open_transaction(prepared.spark, prepared.table)
            if transaction is None or transaction.version != version:
                raise TableConflictError(f"{prepared.table}: another writer committed between two batches")
            part = replace(prepared, transaction=transaction)
        name = f"ingest {prepared.request.source.name}, batch {number + 1}"
        result = run_prepared(part.with_plan(plan), name)
        version = result.version
        yield result


def _with_findings(spark: SparkSession, table: Table, request: IngestRequest, result: StreamResult) -> StreamResult:
    """Adds what concerns all batches together."""
    batch_ids = {batch.batch_id for batch in result.batches if batch.committed}
    if not (request.near_duplicates and batch_ids) or result.version is None:
        return result
    return replace(result, near_duplicates=find_across_splits(spark, table.location, result.version, batch_ids))
