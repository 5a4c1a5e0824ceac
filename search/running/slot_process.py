"""The driver's side of one process, or group of ranks, that trains segments on the slots of one trial.

The process is reused for the next segment, because importing TensorFlow takes seconds. If a trial fails, its process
ends, and another process takes the slots.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ... import errors
from ...errors import (
    InvalidHyperparameters,
    LakelensError,
    LaunchError,
    MissingMetricError,
    NotEnoughSlotsError,
    RankFailedError,
    UsageError,
)
from ...options import flat
from ...spark.port import set_pool
from ...training.runner.placement.conversation import Controls
from ...training.segments.outcome import SegmentOutcome
from ...training.segments.segment import segment_request, serve_segments
from ..journal import Measurement, TrialState
from ..searchers.base import SearchMethod
from .trial_runs import OpenSegment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...training.experiment.experiment_plan import ExperimentPlan
    from .state import SearchState
    from .trial_runs import TrialRuns

# How long a process without a trial waits for one: a promotion often comes within that time.
LINGER_S = 10.0


class Search(Protocol):
    """What a process needs of its search; every method may be called from any process."""

    plan: ExperimentPlan
    state: SearchState
    runs: TrialRuns

    def assign(self, process: SlotProcess) -> TrialState | None:
        """Gives a process its next trial; None if none waits for it."""

    def launched(self, trial: TrialState) -> None:
        """Takes note that the ranks of a trial start."""

    def joined(self) -> None:
        """Takes note that the ranks of a process are there."""

    def may_go_on(self, process: SlotProcess) -> bool:
        """Returns whether a process without a trial may wait for one."""

    def require_rows(self) -> None:
        """Raises if the rows of the search's table are gone."""

    def say(self, text: str) -> None:
        """Shows a line."""

    def left(self, process: SlotProcess) -> None:
        """Takes note that a process has ended."""

    def short_of_slots(self, error: NotEnoughSlotsError) -> None:
        """Takes note that Spark gives fewer slots than were planned."""

    def abort(self, error: BaseException) -> None:
        """Ends the search with an error."""


class SlotProcess(threading.Thread):
    """A thread that follows one process."""

    def __init__(
        self, search: Search, slots: tuple[int, ...], environment: Mapping[str, str], spark: SparkSession | None
    ) -> None:
        super().__init__(name=f"lakelens-slot-{slots[0]}", daemon=True)
        self.slots = slots
        self.controls = Controls()  # What its ranks are told
        self.current: OpenSegment | None = None  # What it trains; None between two segments
        self.busy = False  # Whether a trial has been assigned to it
        self.trained = False  # Whether a segment has ended in it
        self._search, self._environment, self._spark = search, environment, spark
        self._idle_since: float | None = None
        self._first: OpenSegment | None = None

    def run(self) -> None:
        """Trains until no trial waits for these slots."""
        try:
            self._first = self._take()
            if self._first is not None:
                self._launch(self._first)
        except RankFailedError as error:
            self._failed(error)
        except NotEnoughSlotsError as error:
            self._failed(error, counts=False)
            self._search.short_of_slots(error)
        except BaseException as error:  # noqa: BLE001  the search ends with it, in its own thread
            self._search.abort(error)
        finally:
            for segment in (self.current, self._first):
                if segment is not None:
                    segment.held.close()  # for the journal it is still running, as after a kill
            self._search.left(self)

    def _launch(self, first: OpenSegment) -> None:
        resources, strategy = self._search.plan.config.resources, self._search.plan.strategy
        if self._spark is not None:
            # A separate pool: with spark.scheduler.mode=FAIR no other job of the application delays it.
            set_pool(self._spark, self.name)
        name = f"search, slot {self.slots[0]}"
        runner = strategy.runner(resources, name, self._spark, environment=self._environment)
        runner.run_with(
            serve_segments, {"job": first.job}, on_question=self._answer, controls=self.controls, on_message=self._hear
        )

    # --- what the rank asks ---------------------------------------------------------------------------------------

    def _answer(self, rank: int, question: dict[str, Any]) -> dict[str, Any]:
        if "next" in question:
            return self._next(question["next"])
        segment = self.current
        if segment is None or "progress" in question:
            return {}
        if "ended" in question:
            # The trial that is the best in the end is the best one so far when it ends.
            return {"count": self._search.state.best() is segment.trial}
        answer = segment.decisions.answer(question)
        if "validation" not in question:
            return answer
        step, epoch, metrics = (question["validation"][name] for name in ("step", "epoch", "metrics"))
        verdict = self._search.state.validated(
            segment.trial,
            Measurement(segment.planned.length(step), step, epoch, segment.job.config.goal.value_in(metrics), metrics),
            reached=step >= segment.planned.steps(segment.trial.asked),
        )
        # A trial that stops itself ignores the searcher's decision.
        return answer if answer["action"] == "stop" else {**answer, "action": verdict}

    def _next(self, outcome: dict[str, Any] | None) -> dict[str, Any]:
        self._search.joined()
        if outcome is not None and self.current is not None:
            self._ended(self.current, SegmentOutcome(**outcome))
        # TensorFlow sets up several devices once in a process.
        if self.trained and self._search.plan.strategy.replicas > 1:
            return {}
        segment, self._first = self._first or self._take(), None
        if segment is not None:
            self.current = segment
            self._idle_since = None
            return {"segment": segment_request(segment.job, segment.start, segment.trial.restarts)}
        self._idle_since = self._idle_since or time.monotonic()
        waits = self._search.may_go_on(self) and time.monotonic() - self._idle_since < LINGER_S
        return {"wait": True} if waits else {}

    def _take(self) -> OpenSegment | None:
        """Opens the next trial; one that cannot be opened has failed."""
        search = self._search
        while (trial := search.assign(self)) is not None:
            try:
                segment = search.runs.open(trial)
            except UsageError as error:
                search.state.launch(trial, self.slots, trial.run_id, trial.length)
                search.launched(trial)
                search.state.failed(trial, _said(error))
                continue
            search.state.launch(trial, self.slots, segment.job.run.run_id, segment.from_length)
            search.launched(trial)
            return segment
        return None

    def _ended(self, segment: OpenSegment, outcome: SegmentOutcome) -> None:
        """Takes the end of a segment; its checkpoint is on disk."""
        if outcome.failure is not None and outcome.failure[0] != InvalidHyperparameters.__name__:
            self._search.require_rows()
        state, trial = self._search.state, segment.trial
        self.current, self.trained = None, True
        if outcome.failure is None:
            length = segment.planned.length(outcome.step)
            state.ended_segment(trial, length, by_itself=outcome.reason == "stopped")
            unit, metric = segment.planned.unit, segment.job.config.goal.metric
            where = f"{trial.state} at {length:g} {unit.removesuffix('s') if length == 1 else unit}"
            value = f", {metric} {trial.last.metric:.4g}" if trial.last is not None else ""
            self._search.say(f"trial {trial.number}: {where}{value} ({described(trial, state.searcher)})")
        else:
            name, message = outcome.failure
            kind = getattr(errors, name, LakelensError)
            error = kind(message)
            state.failed(trial, _said(error), invalid=isinstance(error, InvalidHyperparameters))
            if isinstance(error, MissingMetricError):
                self._search.abort(error)
        self._search.runs.close(segment)

    def _failed(self, error: LaunchError, *, counts: bool = True) -> None:
        """Takes the end of the process and of the trial in it, if there is one."""
        summary = error.summary if isinstance(error, RankFailedError) else str(error)
        cancelled = isinstance(error, RankFailedError) and error.reason == "cancelled"
        segment = self.current or self._first
        if segment is None or cancelled:
            return
        try:
            self._search.require_rows()
        except (LakelensError, OSError) as gone:
            self._search.abort(gone)  # for the journal the trial is still running: a resume continues it
            return
        self.current = self._first = None
        state, trial = self._search.state, segment.trial
        if not counts:
            state.ended_segment(trial, segment.from_length)
        elif trial.restarts < self._search.plan.config.max_restarts:
            state.restart(trial, summary)
        else:
            state.failed(trial, _said(error))
        self._search.say(f"trial {trial.number}: {summary}")
        self._search.runs.close(segment)

    def _hear(self, text: str) -> None:
        trial = self.current.trial.number if self.current is not None else None
        self._search.say(f"trial {trial}: {text}" if trial is not None else text)


def described(trial: TrialState, searcher: SearchMethod) -> str:
    """Writes the hyperparameters that are searched as a line; omits those that all trials share."""
    leaves = searcher.definition.space.leaves()
    searched = tuple(".".join(path) + "." for path, leaf in leaves if leaf.type != "const")
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in flat(trial.hyperparameters).items()
        if f"{name}.".startswith(searched)
    )


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
