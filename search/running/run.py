"""Entry points: run, resume and control a search."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError, LakelensError, SearchFailedError, SearchPaused
from ...extras import require
from ...job_keys import Job
from ...ledger.protection import using
from ...options import named_options
from ...progress import shown_progress
from ...spark.session import SessionSource, opened
from ...tracking.datasets import require_same_files
from ...tracking.keyed_runs import count_attempt, record_result
from ...tracking.logged_models import register_model
from ...tracking.requests import ChildRuns, requests_heard
from ...tracking.run_writer import RunWriter
from ...tracking.runs import (
    SEARCH_TAG,
    RunReference,
    check_resumable,
    open_client,
    require_store,
    resolve_tracking_uri,
    resumed_run,
)
from ...training.checkpoints.checkpoint import Checkpoint, last_checkpoint, list_checkpoints
from ...training.configuration.experiment import ExperimentConfig
from ...training.experiment.begun_run import begun_run
from ...training.experiment.config_record import has_config, read_config, recorded_values
from ...training.experiment.experiment_plan import ExperimentPlan
from ...training.experiment.keyed import Claim, run_keyed
from ...training.experiment.open_trial import record_outcome
from ...training.experiment.run_folder import checkpoint_root, resuming
from ...training.record.run_files import validation_files
from ...training.segments.backend import FRAMEWORKS
from ...training.segments.outcome import SegmentOutcome, told_by
from ...training.trials.entrypoint import EntryPoint
from ...training.trials.trial import Trial
from ..brackets import rungs_of
from ..journal import Journal, Trials, TrialState, journal_folder, read_events
from ..report.write import REPORT_FOLDER, write_report
from .places import Place, share_of
from .result import SearchResult
from .search_run import SearchRun
from .state import SearchState
from .trial_runs import TrialRuns, plan_search, searcher_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@named_options
def search(
    config: str | Path | Mapping[str, Any] | ExperimentConfig,
    *,
    entrypoint: type[Trial] | None = None,
    spark: SessionSource | None = None,
    job: str | Job | None = None,
) -> SearchResult:
    """Searches for the best hyperparameters: trains trials on free slots and continues the good ones.

    Args:
        config: The experiment: a YAML file, its keys as a dict, or a config.
        entrypoint: Replaces the config's, for a class that a file cannot name.
        spark: The session, or a function that opens it after all other checks. If it has executors, each trial runs on
            them as a separate barrier job.
        job: As for `lakelens.train`. Key: `job`.

    Raises:
        UsageError: If the input or a key is invalid.
        SearchPaused: If the search was interrupted (Ctrl-C, SIGTERM): its trials have paused with checkpoints. A second
            interrupt ends it at once.
        SearchFailedError: If no trial gave a metric.
        TrackingError: If MLflow's store cannot be reached.

    Examples:
        >>> found = lakelens.search({
        ...     "data": {"table": "tables/photos", "version": 0},
        ...     "hyperparameters": {
        ...         "global_batch_size": 16,
        ...         "learning_rate": {"type": "categorical", "vals": [0.01, 0.1]},
        ...     },
        ...     "searcher": {"name": "grid", "metric": "val_loss", "max_length": {"epochs": 1}},
        ... })
        >>> found.best_trial in (0, 1), found.hyperparameters["learning_rate"] in (0.01, 0.1)
        (True, True)
    """
    require("a search", "mlflow")
    experiment = ExperimentConfig.read(config)
    entry = EntryPoint.parse(entrypoint or experiment.entrypoint)
    require("a search", *FRAMEWORKS[entry.framework].packages)
    named = Job.of(job) or Job.of(experiment.job)
    if named is None:
        return _search(experiment, entry, spark)
    return run_keyed(
        named,
        experiment.model_copy(update={"entrypoint": entry.name}),
        {"command": "search"},
        begin=lambda given, claim: _search(given, entry, spark, claim),
        resume=lambda recorded, run_id: _resume(recorded, run_id, entry, spark),
        finished=lambda found: SearchResult(**found, _trials=_recorded_trials(experiment, str(found["run_id"]))),
        is_begun=lambda uri, run_id: _has_trials(experiment, uri, run_id),
    )


def _recorded_trials(experiment: ExperimentConfig, run_id: str) -> list[TrialState]:
    """Reads the trials of a finished search; none where its journal is gone."""
    folder = journal_folder(checkpoint_root(experiment.checkpoint_storage.path), run_id)
    trials = Trials(experiment.goal)
    trials.apply(read_events(folder) if Journal(folder).entries else ())
    return trials.all


def _has_trials(experiment: ExperimentConfig, uri: str, run_id: str) -> bool:
    """Returns whether a search has begun trials; one that was killed before that is begun again in its run."""
    if not has_config(uri, run_id):
        return False
    if Journal(journal_folder(checkpoint_root(experiment.checkpoint_storage.path), run_id)).entries:
        return True
    # Their journal may be in another folder, which is an error.
    parent = RunReference(uri, str(open_client(uri).get_run(run_id).info.experiment_id), run_id, "")
    return bool(ChildRuns(parent).known())


def _search(
    experiment: ExperimentConfig, entry: EntryPoint, spark: SessionSource | None, claim: Claim | None = None
) -> SearchResult:
    started = time.perf_counter()
    require_store(resolve_tracking_uri(experiment.tracking.uri))
    plan = plan_search(experiment, entrypoint=entry, spark=spark)
    session = opened(spark)
    claimed = None if claim is None else claim(plan)
    searcher = plan.config.searcher.model_dump(exclude_none=True, mode="json")
    params = {f"searcher.{name}": value for name, value in searcher.items()} | {"ranks": plan.ranks_recorded}
    with (
        contextlib.nullcontext() if claimed is None else resuming(plan.root, claimed),
        begun_run(plan, tags={SEARCH_TAG: plan.config.searcher.name}, params=params, run_id=claimed) as parent,
    ):
        return _run(plan, parent, started, session, resumes=False)


def resume(
    run_id: str,
    *,
    tracking_uri: str | None = None,
    entrypoint: type[Trial] | None = None,
    spark: SessionSource | None = None,
) -> SearchResult:
    """Resumes a search that was interrupted, failed or was killed.

    Its trials, their hyperparameters and promotions are those of an uninterrupted search. Running trials resume from
    their checkpoints. If all trials have ended, nothing is trained; only the missing parts of its run are written.

    Args:
        run_id: Its MLflow run.
        tracking_uri: As for `train`.
        entrypoint: As for `lakelens.search`.
        spark: As for `lakelens.search`.

    Raises:
        InvalidArgumentError: If the run has finished, is running in this or another process, is not a search, or has no
            journal.
        LakelensError: As `lakelens.search`.
    """
    require("a search", "mlflow")
    uri = resolve_tracking_uri(tracking_uri)
    config = read_config(uri, run_id)
    _, tags = check_resumable(uri, run_id)
    if SEARCH_TAG not in tags:
        raise InvalidArgumentError(f"run {run_id} is not a search; give the run of a search, not of one of its trials")
    config = config.model_copy(update={"tracking": config.tracking.model_copy(update={"uri": uri})})
    entry = EntryPoint.parse(entrypoint or config.entrypoint)
    require("a search", *FRAMEWORKS[entry.framework].packages)
    return _resume(config, run_id, entry, spark)


def _resume(config: ExperimentConfig, run_id: str, entry: EntryPoint, spark: SessionSource | None) -> SearchResult:
    started = time.perf_counter()
    uri = resolve_tracking_uri(config.tracking.uri)
    plan = plan_search(config, entrypoint=entry, spark=spark)
    require_same_files(uri, run_id, plan.data.described())
    if not Journal(journal_folder(plan.root, run_id)).entries:
        raise InvalidArgumentError(
            f"the journal {journal_folder(plan.root, run_id)} of search {run_id} has no entry. A search that ended "
            "before its first trial has to be started again; if it has trials, checkpoint_storage.path is not the "
            "folder they wrote to"
        )
    # First the lock: a second process must not change the run of the first one.
    with resuming(plan.root, run_id), resumed_run(uri, run_id) as parent:
        if config.job is not None:
            count_attempt(parent, config.job)
        return _run(plan, parent, started, opened(spark), resumes=True)


def _run(
    plan: ExperimentPlan, parent: RunReference, started: float, spark: SparkSession | None, *, resumes: bool
) -> SearchResult:
    feed, folder = plan.data.training, journal_folder(plan.root, parent.run_id)
    journal = Journal(folder)
    with contextlib.ExitStack() as stack:
        alive = stack.enter_context(
            # VACUUM keeps the version while trials read it, and after that until the search is deleted.
            using(
                feed.plan.snapshot.table.at(None),
                feed.version,
                parent.run_id,
                tracking_uri=parent.tracking_uri,
                resumable=lambda: journal.entries > 0,
            )
        )
        state = SearchState(searcher_of(plan.config), plan.config.goal, journal)
        children = ChildRuns(parent)
        writer = stack.enter_context(RunWriter(parent, folder.parent, alive=alive))
        if resumes:
            state.replay(read_events(folder))
        else:
            state.start(
                {
                    "config": recorded_values(plan.config),
                    "seed": plan.config.reproducibility.experiment_seed,
                    "unit": state.searcher.settings.max_length.unit,
                }
            )
        known = children.known() if resumes else {}
        with TrialRuns(plan, children, known, rungs_of(state.searcher.settings)) as runs:
            for number in known:
                runs.recover(state.trials[number])
            if not state.finished:
                _run_trials(plan, state, runs, parent, spark)
        runs.prune(state.trials, at_the_end=True)
        result = _finish(plan, state, runs, parent, writer, started)
        # Before the run is FINISHED: until then the search can be resumed, which registers the model again.
        if plan.config.tracking.register_as is not None and result.checkpoint:
            register_model(parent.run_id, plan.config.tracking.register_as, tracking_uri=parent.tracking_uri)
        if plan.config.job is not None:
            shown = [one.name for one in dataclasses.fields(result) if one.repr]
            record_result(parent, {name: getattr(result, name) for name in shown})
        return result


def _run_trials(
    plan: ExperimentPlan, state: SearchState, runs: TrialRuns, parent: RunReference, spark: SparkSession | None
) -> None:
    place, resources = Place.of(plan, spark), plan.config.resources
    share = share_of(
        place.name, place.capacity, size=plan.slots_per_trial, priority=resources.priority, most=resources.max_slots
    )
    with share as slots, shown_progress("search", plan.config.searcher.max_length.unit) as display:
        display.say(f"search {parent.run_id}: {place.described}; events in {journal_folder(plan.root, parent.run_id)}")
        running = SearchRun(plan, state, runs, slots, place, display)
        try:
            with requests_heard(parent, running.obey):
                running.run()
        except LakelensError:
            display.say(f"lakelens search resume {parent.run_id} resumes it once that is fixed")
            raise
    if running.ending == "paused":
        raise SearchPaused(
            f"search {parent.run_id} was interrupted and has paused its trials; "
            f"lakelens search resume {parent.run_id} resumes it",
            signal_number=running.signal_number,
        )
    if running.ending == "given up":
        state.give_up()
        for trial in state.trials:
            runs.mark(trial)


def _finish(
    plan: ExperimentPlan, state: SearchState, runs: TrialRuns, parent: RunReference, writer: RunWriter, started: float
) -> SearchResult:
    best, checkpoint = _best_of(plan.config, state, runs.folders)
    if best is None or best.best is None or best.run_id is None:
        first = next((trial for trial in state.trials if trial.error), None)
        state.finish(None)
        _log_report(plan.root, parent)
        told = "none was validated" if first is None else f"trial {first.number}: {first.error}"
        raise SearchFailedError(
            f"none of {len(state.trials)} trials gave a number for {plan.config.goal.metric}; {told}"
        )
    if checkpoint is not None:
        outcome = SegmentOutcome(**told_by(checkpoint))
        writer.set_tags({"lakelens.search.best_run": best.run_id, "lakelens.search.best_trial": str(best.number)})
        writer.log_files(validation_files(plan.config.make_task(), runs.folders[best.number]))
        record_outcome(writer, outcome, checkpoint, plan.entrypoint)
    state.finish(best)
    _log_report(plan.root, parent)
    return SearchResult(
        run_id=parent.run_id,
        experiment_id=parent.experiment_id,
        tracking_uri=parent.tracking_uri,
        table=plan.data.training.location,
        version=plan.data.training.version,
        best_trial=best.number,
        best_run=best.run_id,
        metric=plan.config.goal.metric,
        value=best.best.metric,
        hyperparameters=best.hyperparameters,
        checkpoint="" if checkpoint is None else str(checkpoint.path),
        digest="" if checkpoint is None else checkpoint.digest,
        states=state.counts(),
        seconds=round(time.perf_counter() - started, 3),
        _trials=[replace(trial) for trial in state.trials],
    )


def _log_report(root: Path, parent: RunReference) -> None:
    """Writes the report next to the journal and logs it to the search's run; a search succeeds without one."""
    try:
        page = write_report(root / parent.run_id, root / parent.run_id / REPORT_FOLDER)
        open_client(parent.tracking_uri).log_artifacts(parent.run_id, str(page.parent), REPORT_FOLDER)
    except Exception as error:  # noqa: BLE001  # a search of days does not fail for a picture
        logger.warning("no report was written (%s); `lakelens search report %s` tries again", error, parent.run_id)


def _best_of(
    config: ExperimentConfig, state: SearchState, folders: Mapping[int, Path]
) -> tuple[TrialState | None, Checkpoint | None]:
    """Finds the best trial with an existing checkpoint; without one, the best trial and its last checkpoint, if any."""
    lost: list[int] = []
    while (trial := state.best(besides=lost)) is not None:
        checkpoint = _checkpoint_of(config, trial, folders[trial.number])
        if checkpoint is not None:
            if lost:
                logger.warning(
                    "trial %d is the best one whose checkpoint of its best validation exists; trials %s were better, "
                    "and theirs were not written or are gone",
                    trial.number,
                    lost,
                )
            return trial, checkpoint
        lost.append(trial.number)
    best = state.best()
    if best is None:
        return None, None
    last = last_checkpoint(folders[best.number])
    logger.warning(
        "no trial has the checkpoint of its best validation: it was not written or is gone. The search keeps "
        "trial %d and %s",
        best.number,
        "no model" if last is None else f"{last.path}, with the metrics of that one",
    )
    return best, last


def _checkpoint_of(config: ExperimentConfig, trial: TrialState, folder: Path) -> Checkpoint | None:
    """Finds the checkpoint of a trial's best validation, or its last one where the config keeps no best one."""
    step = trial.best.step if trial.best is not None else None
    kept = [checkpoint for checkpoint in list_checkpoints(folder) if checkpoint.metadata.get("step") == step]
    storage = config.checkpoint_storage
    if kept or (config.checkpoint_policy != "none" and (storage.save_experiment_best or storage.save_trial_best)):
        return kept[-1] if kept else None  # of one step the weights in training, which the search has measured
    return last_checkpoint(folder)
