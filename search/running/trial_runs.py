"""What a search runs: its experiment and those of its trials, with their runs and folders on the driver."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError, LakelensError, TrackingError
from ...spark.session import SessionSource
from ...tracking.datasets import log_table
from ...tracking.requests import ChildRuns
from ...tracking.run_writer import RECORDS_FILE, RunRecord, RunWriter
from ...tracking.runs import RunReference, steps_of
from ...training.checkpoints.checkpoint import Checkpoint, last_checkpoint
from ...training.configuration.experiment import ExperimentConfig
from ...training.configuration.lengths import Length
from ...training.configuration.searcher import SINGLE, SearcherConfig
from ...training.experiment.begun_run import goal_tags
from ...training.experiment.config_record import log_config
from ...training.experiment.experiment_plan import ExperimentPlan
from ...training.experiment.run_folder import prune, run_folder
from ...training.experiment.starts import TrainingStart
from ...training.runner.spark.preflight import active_connect_session, require_classic
from ...training.segments.decisions import Decisions, Progress
from ...training.segments.job import TrainingJob
from ...training.segments.training_state import TrainingState
from ...training.segments.verdicts import records_in
from ...training.trials.entrypoint import EntryPoint
from ..create import create_searcher
from ..journal import COMPLETED, FAILED, INVALID, PAUSED, RUNNING, STOPPED, WAITING, TrialState
from ..searchers.base import SearchMethod
from ..settings import require_space, searcher_section


def plan_search(
    config: ExperimentConfig, *, entrypoint: EntryPoint | None = None, spark: SessionSource | None = None
) -> ExperimentPlan:
    """Resolves the experiment of a search; its rows are opened once for all trials."""
    if config.continue_from is not None:
        raise ConfigurationError("continue_from trains one run further; a search begins its trials: remove the key")
    require_space(config)
    searcher_of(config)  # finds an unusable space before the session opens and a run begins
    plan = ExperimentPlan.of(config, entrypoint=entrypoint, spark=spark)
    if plan.ranks >= 0:
        require_classic(active_connect_session() if spark is None or callable(spark) else spark, "a search")
    return plan


def searcher_of(config: ExperimentConfig) -> SearchMethod:
    """Makes the searcher, which has not started."""
    return create_searcher(searcher_section(config), config.hyperparameters, config.reproducibility.experiment_seed)


@dataclass(frozen=True)
class PlannedTrial:
    """One trial of a search, and what a length is in its steps."""

    plan: ExperimentPlan  # What it trains
    steps_per_epoch: int  # Steps of an epoch

    @classmethod
    def of(cls, search: ExperimentPlan, hyperparameters: Mapping[str, Any]) -> PlannedTrial:
        """Plans one trial."""
        searcher = search.config.searcher
        single = SearcherConfig(
            name=SINGLE,
            metric=searcher.metric,
            smaller_is_better=searcher.smaller_is_better,
            max_length=searcher.max_length,
        )
        update = {"hyperparameters": dict(hyperparameters), "searcher": single, "job": None}
        plan = replace(search, config=search.config.model_copy(update=update))
        return cls(plan, plan.schedule.steps_per_epoch)

    @property
    def unit(self) -> str:
        """Unit of the search's lengths."""
        return self.plan.config.searcher.max_length.unit

    def steps(self, length: int) -> int:
        """Converts a length to the step at which it is reached."""
        size = self.plan.config.global_batch_size
        return Length(**{self.unit: length}).steps(global_batch_size=size, steps_per_epoch=self.steps_per_epoch)

    def length(self, step: int) -> float:
        """Converts a step to the length that is reached there."""
        if self.unit == "epochs":
            return _whole(step / self.steps_per_epoch)
        return step if self.unit == "batches" else step * self.plan.config.global_batch_size


def _whole(value: float) -> float:
    return int(value) if value == int(value) else round(value, 6)


logger = logging.getLogger(__name__)

STATE_TAG, RUNG_TAG, LENGTH_TAG = "lakelens.trial.state", "lakelens.trial.rung", "lakelens.trial.length"
# Threads for calls to the store, which mostly wait.
_THREADS = 4
_STATUS = {
    WAITING: "SCHEDULED",
    PAUSED: "SCHEDULED",
    RUNNING: "RUNNING",
    STOPPED: "FINISHED",
    COMPLETED: "FINISHED",
    FAILED: "FAILED",
    INVALID: "FAILED",
}


@dataclass(frozen=True)
class OpenSegment:
    """A trial that is ready for a segment."""

    trial: TrialState  # The trial
    planned: PlannedTrial  # What it trains
    job: TrainingJob  # The training job of every rank
    start: Checkpoint | None  # The checkpoint to continue from; None is its start
    from_length: float  # The length at that checkpoint
    decisions: Decisions  # What a trial decides at its validations: its best, its patience, its checkpoints
    held: contextlib.ExitStack  # Closes its folder and its run's writer
    writer: RunWriter  # Writes into its run


class TrialRuns:
    """Opens and closes segments. Use as a context manager: leaving it waits for background work."""

    def __init__(
        self, plan: ExperimentPlan, children: ChildRuns, known: Mapping[int, RunReference], rungs: list[tuple[int, ...]]
    ) -> None:
        self._plan, self._children = plan, children
        self._runs = dict(known)
        self._lengths = sorted({length for bracket in rungs for length in bracket})
        self._used = set(known)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lakelens-trials")
        self._before: dict[int, Future[Any]] = {}

    def __enter__(self) -> TrialRuns:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=True)

    @property
    def folders(self) -> dict[int, Path]:
        """The folder of each trial that has a run."""
        return {trial: self._plan.root / run.run_id for trial, run in list(self._runs.items())}

    def prepare(self, trial: TrialState) -> None:
        """Makes the run of a waiting trial in the background, so that a free slot need not wait for it."""
        if trial.number not in self._runs and trial.number not in self._before:
            self._later(trial.number, lambda: self._run_of(trial, PlannedTrial.of(self._plan, trial.hyperparameters)))

    def open(self, trial: TrialState) -> OpenSegment:
        """Makes a trial ready for a segment."""
        before = self._before.get(trial.number)
        if before is not None:
            before.exception()  # waits; a failed call is tried again here
        planned = PlannedTrial.of(self._plan, trial.hyperparameters)
        run = self._run_of(trial, planned)
        recorded = steps_of(run) if trial.number in self._used else set()
        self._used.add(trial.number)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(run_folder(self._plan.root, run))
            writer = stack.enter_context(RunWriter(run, folder, recorded))
            start = last_checkpoint(folder)
            weights = stack.enter_context(TrainingStart.of(planned.plan, run.run_id).laid_into(folder, writer))
            progress = TrainingState.of(start).progress if start is not None else Progress()
            step = int(start.metadata["step"]) if start is not None else 0
            rungs = frozenset(planned.steps(length) for length in self._lengths)
            job = planned.plan.job(run, weights, validations=rungs, asks_to_count=True)
            decisions = Decisions(job.config, progress, records_in(folder, job.config.goal))
            self._children.mark(run, "RUNNING", self._tags(trial) | {STATE_TAG: RUNNING})
            return OpenSegment(trial, planned, job, start, planned.length(step), decisions, stack.pop_all(), writer)

    def close(self, segment: OpenSegment) -> None:
        """Updates run and folder of a trial after a segment, in the background."""
        trial = segment.trial
        state, best, failure = trial.state, trial.best, _failure(trial)

        def finish() -> None:
            if best is not None:
                values = {f"best_{name}": value for name, value in best.metrics.items()}
                segment.writer.log(RunRecord(values, best.epoch))
            try:
                segment.writer.finish()
            finally:
                segment.held.close()
                self._children.mark(segment.job.run, _STATUS[state], self._tags(trial) | {STATE_TAG: state}, failure)

        self._later(trial.number, finish)

    def mark(self, trial: TrialState) -> None:
        """Writes the state of a trial that does not run into its run, in the background."""
        state = trial.state

        def work() -> None:
            run = self._runs.get(trial.number)
            if run is not None:
                self._children.mark(run, _STATUS[state], self._tags(trial) | {STATE_TAG: state}, _failure(trial))

        self._later(trial.number, work)

    def recover(self, trial: TrialState) -> None:
        """Writes what a killed search has not written into a trial's run, and cleans its folder, in the background."""
        run = self._runs[trial.number]

        def work() -> None:
            with run_folder(self._plan.root, run) as folder:
                if (folder / RECORDS_FILE).exists():
                    with RunWriter(run, folder, steps_of(run)) as writer:
                        writer.finish()

        self._later(trial.number, work)
        self.mark(trial)

    def prune(self, trials: list[TrialState], *, at_the_end: bool = False) -> None:
        """Removes checkpoints that no rule keeps; those that a trial may continue from stay until the end."""
        rules = self._plan.config.checkpoint_storage.retention
        if not at_the_end:
            if rules.save_experiment_best == 0:
                return
            rules = rules.while_running()
        running = {trial.number for trial in trials if trial.state in (RUNNING, WAITING)} if not at_the_end else set()
        goal, folders = self._plan.config.goal, dict(self.folders)
        # Such a trial is never the best one, whatever it measured before. One that was only just created has no folder.
        never = {trial.number for trial in trials if not trial.can_be_best}
        apart = {number: folders.pop(number) for number in never & folders.keys()}
        prune(folders, rules, goal, running=running)
        prune(apart, replace(rules, save_experiment_best=0), goal, running=running)

    def _run_of(self, trial: TrialState, planned: PlannedTrial) -> RunReference:
        if trial.number not in self._runs:
            plan = planned.plan
            read = plan.data.described()
            tags = {**goal_tags(plan.config, plan.entrypoint), STATE_TAG: WAITING}
            given = plan.config.trial_hyperparameters
            params = plan.params | {f"hyperparameters.{name}": value for name, value in given.items()}
            run = self._children.create(trial.number, f"trial {trial.number}", tags, params)
            log_table(run, read)
            log_config(run, plan.config)
            self._runs[trial.number] = run
        return self._runs[trial.number]

    def _tags(self, trial: TrialState) -> dict[str, str]:
        rung = sum(length <= trial.length for length in self._lengths)
        return {LENGTH_TAG: f"{trial.length:g}", RUNG_TAG: str(rung)}

    def _later(self, trial: int, work: Callable[[], object]) -> None:
        before = self._before.get(trial)

        def run() -> None:
            if before is not None:
                before.exception()
            try:
                work()
            except TrackingError as error:
                logger.warning("trial %d: %s", trial, error)
            except LakelensError as error:
                logger.debug("trial %d: %s", trial, error)  # raised again when the trial is opened

        self._before[trial] = self._threads.submit(run)


def _failure(trial: TrialState) -> str | None:
    return trial.error if trial.state in (FAILED, INVALID) else None
