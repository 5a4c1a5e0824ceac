"""A scoring run: parts of bounded work, each run through the model, then added once to the predictions."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING

from ...errors import TableConflictError
from ...etl.spark.failures import conflicts_named
from ...progress import image_progress
from ...spark.port import kept, names_of_tasks, parallelism
from ...tracking.datasets import Scoring, record_scoring
from ...training.checkpoints.references import ModelRef
from ..model.failures import typed_failures
from ..model.onnx_engine import UNFROZEN
from ..model.shipping import ShippedModel, prediction_task, ship
from ..model.user_code import UserCode
from .images import ImageFiles
from .mismatch import check_model
from .predictions import PASSED_DDL, PredictionsState, PredictionsTable, mark_of, new_batch_id, with_columns
from .remaining import IS_COPIED, RemainingRows, in_version, remaining_rows, require_same_key, to_retry, without
from .source import ScoredTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A killed job repeats one part; each part costs about a second on top of its work.
TARGET_S = 30.0
# Size of a job's first part, before anything was measured: half a minute of MobileNetV2 on each slot.
_FIRST_PIXELS_PER_SLOT = 128 << 20
_MOST_FIRST_ROWS_PER_SLOT = 50_000
_GROWTH = 4.0


def first_rows(input_shape: tuple[int, int, int], slots: int) -> int:
    """Chooses the rows of a job's first part."""
    per_slot = _FIRST_PIXELS_PER_SLOT // (input_shape[0] * input_shape[1])
    return max(1, min(per_slot, _MOST_FIRST_ROWS_PER_SLOT)) * max(1, slots)


def next_rows(rows: int, seconds: float) -> int:
    """Chooses the rows of the next part, so that it takes about `TARGET_S`, by those of the last and its time."""
    factor = TARGET_S / max(seconds, 1e-3)
    return max(1, int(rows * min(_GROWTH, max(1 / _GROWTH, factor))))


def shuffled(rows_by_file: Mapping[str, int], order: random.Random) -> deque[str]:
    """Orders the files in an order specific to this job, so that concurrent jobs rarely work on the same file."""
    files = sorted(file for file, rows in rows_by_file.items() if rows > 0)
    order.shuffle(files)
    return deque(files)


def take(files: deque[str], rows_by_file: Mapping[str, int], most_rows: int) -> list[str]:
    """Takes the first files: at least one, and more up to `most_rows` rows."""
    taken = [files.popleft()]
    rows = rows_by_file[taken[0]]
    while files and rows + rows_by_file[files[0]] <= most_rows:
        taken.append(files.popleft())
        rows += rows_by_file[taken[-1]]
    return taken


# Attempts can fail because another scoring job of the same model and table appends first.
_ATTEMPTS = 20


@dataclass(frozen=True)
class Counts:
    """Rows of a part."""

    scored: int  # Rows that the model was run on
    errors: int  # How many of them have an error
    copied: int  # Rows with a prediction of another version

    @property
    def rows(self) -> int:
        """All rows."""
        return self.scored + self.copied


@dataclass(frozen=True)
class Added:
    """What one commit has added."""

    state: PredictionsState  # The state of the predictions table after it
    counts: Counts
    is_overtaken: bool  # Whether another job has added rows since the work was read


def append_once(
    results: PredictionsTable,
    rows: DataFrame,
    state: PredictionsState,
    *,
    note: str,
    done: Callable[[int], DataFrame],
    counts: Counts,
) -> Added:
    """Adds rows in one commit, without those that another job has added since `state`."""
    for attempt in range(_ATTEMPTS):
        if counts.rows == 0:
            return Added(state, counts, is_overtaken=True)
        state, is_added = results.append(rows, state, note)
        if is_added:
            return Added(state, counts, is_overtaken=attempt > 0)
        if state.version is not None:
            rows = without(rows, done(state.version))
            counts = count_rows(rows)
    raise TableConflictError(
        f"{results.location}: other jobs that score the same table with the same model were faster {_ATTEMPTS} times; "
        "score again when they have ended; that scores the remaining rows"
    )


def count_rows(rows: DataFrame) -> Counts:
    """Counts the rows of a part."""
    from pyspark.sql import functions as f

    counts = (f.count_if(~f.col(IS_COPIED)), f.count("error"), f.count_if(IS_COPIED))
    return Counts(*map(int, rows.agg(*counts).collect()[0]))


logger = logging.getLogger(__name__)


@dataclass
class Tally:
    """What a scoring run has done so far."""

    # A version of the predictions table that holds the rows; None when nothing was ever written
    version: int | None = None
    total: int = 0  # Rows of the version and split
    scored: int = 0  # Rows that the model was run on, and that were added
    errors: int = 0  # How many of them have an error
    carried: int = 0  # Rows that were copied
    commits: int = 0  # How many commits have added these rows
    # What ran the model, as in `CompiledModel.engine`; empty if no row was predicted
    engines: frozenset[str] = frozenset()


@dataclass
class ScoringRun:
    """The scoring of one version, with everything resolved."""

    # Other jobs may score the same version with the same model at the same time. Each takes the parts in its own order,
    # reads the remaining rows again after another job has added rows, and drops rows added meanwhile from a part.

    spark: SparkSession
    model: ModelRef
    source: ScoredTable
    results: PredictionsTable
    batch_bytes: int
    code: UserCode
    engine: str | None = None  # As for `ship`
    # Most rows of a part, in whole data files; None makes parts of about half a minute of work
    rows_per_commit: int | None = None
    alive: Callable[[], None] = lambda: None  # Called before each part
    tally: Tally = field(default_factory=Tally)
    batch_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.batch_id = new_batch_id(self._mark)
        self._count_file: str | None = None
        self._engines = names_of_tasks(self.spark)

    @cached_property
    def _mark(self) -> str:
        """What the `batch_id` of each job starts with that scores this version by these columns with this model."""
        source = self.source
        mark = mark_of(self.model.digest, source.location, source.snapshot.table_id, source.version)
        return with_columns(mark, source.columns.path, source.columns.key)

    @cached_property
    def _shipped(self) -> ShippedModel:
        """The model, sent when the first part needs it."""
        return ship(self.spark, self.model, batch_bytes=self.batch_bytes, code=self.code, engine=self.engine)

    @cached_property
    def _images(self) -> ImageFiles:
        return self.source.image_files(self.batch_bytes)

    @property
    def _scored(self) -> str:
        """The condition for the predictions that count."""
        return in_version(self.source, self.model.digest)

    def check(self, strict: bool) -> None:
        """Compares the model with the table, and warns of a table whose images cannot be found in other versions."""
        check_model(self.model, self.source, strict)
        if not self.source.has_key:
            logger.warning(
                "%s has no column %r, so images shared with other versions cannot be found, and each version is scored "
                "in full. To score new images only, name a column that changes when the image changes: key=... (--key)",
                self.source.name,
                self.source.columns.key,
            )

    def complete(self, *, stays: bool = True, before_part: Callable[[], None] = lambda: None) -> None:
        """Scores the remaining rows while their version is protected, also after that if `stays`; records it."""
        source, model = self.source, self.model
        with source.protected(model.digest, stays=stays) as renew, typed_failures(source.name):

            def alive() -> None:
                renew()
                before_part()

            self.alive = alive
            tally = self.until_done()
        if tally.version is not None and model.tracking_uri is not None and model.run_id is not None:
            scored_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
            scoring = Scoring(self.results.location, tally.version, source.location, source.version, scored_at)
            record_scoring(model.tracking_uri, model.run_id, scoring)

    def until_done(self) -> Tally:
        """Adds parts until no row remains."""
        self.tally.total = self.source.row_count()
        state = self.results.state()
        if state.version is not None:
            if state.may_have_errors():
                # Once per call, or two jobs would try each other's rows again forever. If another job is faster, it has
                # taken these rows.
                with suppress(TableConflictError), conflicts_named(self.results.location):
                    self.results.remove(to_retry(self._scored))
                state = self.results.state()
            if state.is_complete(self._mark, self.source.split, self.tally.total):
                self.tally.version = state.version
                return self.tally
        while not self._add_remaining(state):
            logger.info("another job scores %s with the same model; reading the rest again", self.source.name)
            state = self.results.state()
        return self.tally

    def _add_remaining(self, state: PredictionsState) -> bool:
        """Adds the remaining rows part by part; returns False as soon as another job has added rows, too."""
        digest = self.model.digest
        self.tally.version = state.version
        with remaining_rows(self.source, self.results, state, digest) as remaining:
            if 0 < remaining.todo_rows + remaining.copied_rows == self.tally.total:
                require_same_key(self.source, self.results, state, digest)
            return self._add_parts(remaining, state)

    def _add_parts(self, remaining: RemainingRows, state: PredictionsState) -> bool:
        scored, errors = self.tally.scored, self.tally.errors

        def counted() -> tuple[int, int]:
            return self.tally.scored - scored, self.tally.errors - errors

        # Copies travel with the first part: a commit of their own would take as long as that of a small part.
        copied = remaining.copied() if remaining.copied_rows else None
        with image_progress(f"score {self.source.name}", remaining.todo_rows, counted) as self._count_file:
            for files, rows in self._parts(remaining):
                self.alive()
                added = self._add(self._predicted(remaining.todo(files), rows), copied, remaining.copied_rows, state)
                state, copied = added.state, None
                if added.is_overtaken:
                    return False
        if copied is None:
            return True
        return not self._append(copied, Counts(0, 0, remaining.copied_rows), state).is_overtaken

    def _parts(self, remaining: RemainingRows) -> Iterator[tuple[list[str], int]]:
        """Divides the remaining rows into parts of whole files; a part's size follows from the time of the last one."""
        most = self.rows_per_commit or first_rows(self.model.input_shape, parallelism(self.spark))
        files = shuffled(remaining.todo_by_file, random.Random(self.batch_id))  # noqa: S311  an order, no secret
        copied = remaining.copied_rows > 0
        while files:
            part = take(files, remaining.todo_by_file, most)
            rows = sum(remaining.todo_by_file[file] for file in part)
            started = time.monotonic()
            yield part, rows
            # The time of the first part is also that of the copies.
            if self.rows_per_commit is None and not copied:
                most = next_rows(rows, time.monotonic() - started)
            copied = False

    def _add(self, part: DataFrame, copied: DataFrame | None, copied_rows: int, state: PredictionsState) -> Added:
        with kept(part) as predicted:
            counts = count_rows(predicted)
            self._name_engines()
            if copied is None:
                return self._append(predicted, counts, state)
            return self._append(predicted.unionByName(copied), replace(counts, copied=copied_rows), state)

    def _name_engines(self) -> None:
        for engine in self._engines.value - self.tally.engines:
            if engine.startswith(UNFROZEN):
                logger.warning("model %s runs slower than it could, with equal results. %s", self.model.uri, engine)
        self.tally.engines = self._engines.value

    def _append(self, rows: DataFrame, counts: Counts, state: PredictionsState) -> Added:
        added = append_once(
            self.results,
            self._marked_as_ours(rows),
            state,
            note=f"lakelens.score {self.batch_id} {self.tally.commits + 1}",
            done=lambda version: self.results.read(version).where(self._scored),
            counts=counts,
        )
        if added.counts.rows:
            self.tally.commits += 1
            self.tally.version = added.state.version
            self.tally.scored += added.counts.scored
            self.tally.errors += added.counts.errors
            self.tally.carried += added.counts.copied
        return added

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

    def _predicted(self, part: DataFrame, rows: int) -> DataFrame:
        from pyspark.sql import functions

        height, width, _ = self.model.input_shape
        predicted = self._images.predicted(
            part,
            prediction_task(self._shipped, self._count_file, engines=self._engines),
            f"{PASSED_DDL}, {self._shipped.ddl}",
            count=rows,
            image_pixels=height * width,
            slots=parallelism(self.spark),
        )
        return predicted.withColumns(
            {
                "model_uri": functions.lit(self.model.uri),
                "scored_at": functions.lit(datetime.now(timezone.utc)),
                IS_COPIED: functions.lit(False),
            }
        )
