"""A scoring run: parts of bounded work, each run through the model, then added to the predictions in one commit."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ...errors import ScoringFailedError, TableConflictError
from ...etl.spark.conflicts import conflicts_named
from ...progress import image_progress
from ...spark.port import parallelism
from ...training.checkpoints.references import ModelRef
from ..model.shipping import prediction_task, ship
from ..model.user_code import UserCode
from .parts import first_rows, next_rows, shuffled, take
from .predictions import PASSED_DDL, PredictionsState, PredictionsTable, mark_of, new_batch_id, next_number
from .source import ALL_FILES, ScoredTable
from .tasks import arrow_rows, bounded_arrow_batches, spread
from .work import Work, done_rows, retried, same_row, split_work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

# Attempts can fail because another scoring job of the same model and table appends first.
_ATTEMPTS = 20


@dataclass
class Tally:
    """What a scoring run has done so far.

    Attributes:
        version: A version of the predictions table that holds the rows; None when nothing was ever written.
        total: Rows of the version and split.
        scored: Rows that the model was run on, and that were added.
        errors: How many of them have an error.
        carried: Rows that were copied.
        commits: How many commits have added these rows.
    """

    version: int | None = None
    total: int = 0
    scored: int = 0
    errors: int = 0
    carried: int = 0
    commits: int = 0


@dataclass
class ScoringRun:
    """One call of `score`, with everything resolved.

    Other jobs may score the same version with the same model at the same time. Each takes the parts in its own
    order, reads the remaining rows again after another job has added rows, and drops rows added meanwhile from a part.

    Attributes:
        rows_per_commit: Most rows of a part, in whole data files; None makes parts of about half a minute of work.
        alive: Called after each part.
    """

    spark: SparkSession
    model: ModelRef
    source: ScoredTable
    results: PredictionsTable
    batch_bytes: int
    code: UserCode
    rows_per_commit: int | None = None
    alive: Callable[[], None] = lambda: None
    tally: Tally = field(default_factory=Tally)
    batch_id: str = field(init=False)

    def __post_init__(self) -> None:
        source = self.source
        self.batch_id = new_batch_id(
            mark_of(self.model.digest, source.location, source.snapshot.table_id, source.version)
        )
        self._count_file: str | None = None

    def until_done(self) -> Tally:
        """Adds parts until each row of the version and split is in the predictions."""
        retry = True
        while True:
            state = self.results.state()
            with split_work(self.source, self.results, state, self.model.digest, retry=retry) as work:
                self.tally.version, self.tally.total = state.version, work.total_rows
                retry = retry and work.retried_rows > 0
                if not retry and self._add_all(work, state):
                    return self.tally
            if retry:
                # Once per call, or two jobs would try each other's rows again forever. If another job is faster, it
                # has taken these rows.
                with suppress(TableConflictError), conflicts_named(self.results.location):
                    self.results.remove(retried(self.source, self.model.digest))
                retry = False

    def _add_all(self, work: Work, state: PredictionsState) -> bool:
        """Adds the remaining rows part by part; returns False as soon as another job has added rows, too."""
        before, errors = self.tally.scored, self.tally.errors

        def counted() -> tuple[int, int]:
            return self.tally.scored - before, self.tally.errors - errors

        if work.carried_rows:
            added = self._append(self._marked_as_ours(work.carried()), (work.carried_rows, 0), state)
            self.tally.carried += added.rows
            state = added.state
            if added.is_overtaken:
                return False
        with image_progress(f"score {self.source.name}", work.todo_rows, counted) as self._count_file:
            for files, rows in self._parts(work):
                added = self._add(work, files, rows, state)
                self.tally.scored += added.rows
                self.tally.errors += added.errors
                state = added.state
                self.alive()
                if added.is_overtaken:
                    logger.info("another job scores %s with the same model; reading the rest again", self.source.name)
                    return False
        return True

    def _parts(self, work: Work) -> Iterator[tuple[list[str], int]]:
        """Divides the remaining rows into parts of whole files; a part's size follows from the time of the last one."""
        if ALL_FILES in work.todo_by_file:
            logger.warning(
                "%s has deletion vectors or column mapping, so its data files are not read one by one: there is one "
                "commit, and a killed scoring starts again",
                self.source.name,
            )
        most = self.rows_per_commit or first_rows(self.model.input_shape, parallelism(self.spark))
        files = shuffled(work.todo_by_file, random.Random(self.batch_id))  # noqa: S311  an order, no secret
        while files:
            part = take(files, work.todo_by_file, most)
            rows = sum(work.todo_by_file[file] for file in part)
            started = time.monotonic()
            yield part, rows
            if self.rows_per_commit is None:
                most = next_rows(rows, time.monotonic() - started)

    def _add(self, work: Work, files: Sequence[str], rows: int, state: PredictionsState) -> _Added:
        """Runs the model on one part and adds the predictions."""
        limit = arrow_rows(self.batch_bytes, self.source.mean_row_bytes)
        predicted = self._marked_as_ours(self._predicted(work, files, rows)).persist()
        try:
            with bounded_arrow_batches(self.spark, limit):
                counts = _counts(predicted)
            if counts[0] == 0:  # the loop would never end
                raise ScoringFailedError(
                    f"{self.source.name}: {rows} rows remain in {len(files)} files, and reading these gives none; "
                    "was the table's folder changed manually?"
                )
            return self._append(predicted, counts, state)
        finally:
            predicted.unpersist()

    def _append(self, rows: DataFrame, counts: tuple[int, int], state: PredictionsState) -> _Added:
        """Adds rows; without those that another job has added since `state`.

        Raises:
            TableConflictError: If other jobs kept being faster.
        """
        left = rows
        for attempt in range(_ATTEMPTS):
            if counts[0] == 0:
                return _Added(state, 0, 0, is_overtaken=True)
            self.tally.commits += 1
            note = f"lakelens.score {self.batch_id} {self.tally.commits}"
            with suppress(TableConflictError), conflicts_named(self.results.location):
                self.results.append(left, state, note)
            after, is_there = self.results.state_after(state, note)
            if is_there:
                self.tally.version = after.version
                return _Added(after, *counts, is_overtaken=attempt > 0 or after.transaction != next_number(state))
            self.tally.commits -= 1
            state = after
            if state.version is not None:
                done = done_rows(self.source, self.results, state, self.model.digest)
                left = rows.alias("rows").join(done.alias("done"), same_row("rows", "done"), "left_anti")
                counts = _counts(left)
        raise TableConflictError(
            f"{self.results.location}: other jobs that score {self.source.name} with model {self.model.digest[:12]} "
            f"were faster {_ATTEMPTS} times; call score again when they have ended; it scores the remaining rows"
        )

    def _marked_as_ours(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        return rows.withColumns(
            {
                "checkpoint_digest": functions.lit(self.model.digest),
                "table": functions.lit(self.source.location),
                "version": functions.lit(self.source.version).cast("bigint"),
                "batch_id": functions.lit(self.batch_id),
            }
        )

    def _predicted(self, work: Work, files: Sequence[str], rows: int) -> DataFrame:
        from pyspark.sql import functions

        shipped = ship(self.spark, self.model, batch_bytes=self.batch_bytes, code=self.code)
        images = spread(
            work.images(files),
            row_count=rows,
            input_shape=self.model.input_shape,
            slots=parallelism(self.spark),
            row_groups=self.source.row_groups(files),
        )
        return images.mapInArrow(
            prediction_task(shipped, self._count_file), f"{PASSED_DDL}, {shipped.ddl}"
        ).withColumns(
            {
                "model_uri": functions.lit(self.model.uri),
                "scored_at": functions.lit(datetime.now(timezone.utc)),
            }
        )


@dataclass(frozen=True)
class _Added:
    """What one commit has added.

    Attributes:
        state: The state of the predictions table after it.
        rows: Rows.
        errors: How many of them have an error.
        is_overtaken: Whether another job has added rows since the work was read.
    """

    state: PredictionsState
    rows: int
    errors: int
    is_overtaken: bool


def _counts(rows: DataFrame) -> tuple[int, int]:
    """Counts rows, and those with an error."""
    from pyspark.sql import functions

    count = functions.count(functions.lit(1)).alias("rows")
    found = rows.agg(count, functions.count("error").alias("errors")).collect()[0]
    return int(found["rows"]), int(found["errors"])
