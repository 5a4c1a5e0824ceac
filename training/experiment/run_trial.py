"""Runs one trial on one pinned version of an image table, on one or many ranks, as one MLflow run."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...errors import RankFailedError, TrainingKilled, TrainingPaused
from ...extras import require
from ...job_keys import Job
from ...results import ReadableResult
from ...spark.session import SessionSource, opened
from ...tracking.datasets import require_same_files
from ...tracking.keyed_runs import count_attempt, record_result
from ...tracking.logged_models import register_model
from ...tracking.requests import requests_heard
from ...tracking.runs import ORIGIN_TAG, RunReference, require_store, resolve_tracking_uri
from ..checkpoints.checkpoint import last_checkpoint
from ..configuration.experiment import ExperimentConfig, require_single
from ..runner.placement.conversation import Controls
from ..segments.backend import FRAMEWORKS
from ..trials.entrypoint import EntryPoint
from .experiment_plan import ExperimentPlan
from .keyed import Claim, require_checkpoints, run_keyed
from .open_trial import open_trial
from .starts import TrainingStart
from .trial_driver import run_segment

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class TrainResult(ReadableResult):
    """The result of a training.

    Attributes:
        run_id: The MLflow run.
        experiment_id: Its experiment.
        tracking_uri: Its store.
        table: Path or URI of the table.
        version: Number of the version that was read.
        checkpoint: Folder of the best checkpoint, or of the last one if the config keeps no best one.
        digest: Its digest.
        metrics: Its metrics, over all ranks.
        best_epoch: Its epoch, from 1.
        epochs: Number of trained epochs.
        ranks: Number of ranks.
        seconds: From the call to this result.
    """

    run_id: str
    experiment_id: str
    tracking_uri: str
    table: str
    version: int
    checkpoint: str
    digest: str
    metrics: dict[str, float]
    best_epoch: int
    epochs: int
    ranks: int
    seconds: float


def run_trial(
    config: ExperimentConfig,
    *,
    entrypoint: EntryPoint | None = None,
    spark: SessionSource | None = None,
    resumes: str | None = None,
    reproduces: str | None = None,
    job: Job | None = None,
) -> TrainResult:
    """Runs the single trial of an experiment; once, if it is that of a job."""
    job = job or Job.of(config.job)
    if job is None or resumes is not None:
        return _run(config, entrypoint, spark, resumes=resumes, reproduces=reproduces)
    return run_keyed(
        job,
        config,
        {"command": "train"} if reproduces is None else {"command": "reproduce", "run": reproduces},
        begin=lambda given, claim: _run(given, entrypoint, spark, reproduces=reproduces, claim=claim),
        resume=lambda recorded, run_id: _run(recorded, entrypoint, spark, resumes=run_id),
        finished=lambda found: TrainResult(**found),
    )


def _run(
    config: ExperimentConfig,
    entrypoint: EntryPoint | None,
    spark: SessionSource | None,
    *,
    resumes: str | None = None,
    reproduces: str | None = None,
    claim: Claim | None = None,
) -> TrainResult:
    started = time.perf_counter()
    entrypoint = entrypoint or EntryPoint.parse(config.entrypoint)
    require("a training", "mlflow", *FRAMEWORKS[entrypoint.framework].packages)
    require_single(config)
    plan = ExperimentPlan.of(config, entrypoint=entrypoint, spark=spark)
    uri = resolve_tracking_uri(config.tracking.uri)
    require_store(uri)
    earlier = resumes or reproduces
    if earlier is not None:
        require_same_files(uri, earlier, plan.data.described())
    tags = {} if reproduces is None else {ORIGIN_TAG: reproduces}
    if resumes is not None and config.job is not None:
        require_checkpoints(config.job, plan, resumes)
    begin = TrainingStart.of(plan, resumes)
    plan = replace(plan, config=begin.pinned(plan.config))
    spark = opened(spark) if plan.ranks >= 0 else None
    claimed = None if claim is None else claim(plan)
    with open_trial(plan, begin, tags=tags, resumes=resumes, run_id=claimed, spark=spark) as trial:
        run, controls, start = trial.job.run, Controls(), last_checkpoint(trial.job.folder)
        if resumes is not None and config.job is not None:
            count_attempt(run, config.job)
        if resumes is not None and start is None:
            logger.warning(
                "run %s has no checkpoint in %s, so it starts from scratch; if it had one, mount that folder here, and "
                "give min_checkpoint_period if an epoch takes longer than its machine lasts",
                run.run_id,
                trial.job.folder,
            )
        with obeying_requests(run, controls):
            outcome = run_segment(trial.runner, trial.job, start=start, controls=controls)
        if outcome.reason == "paused":
            raise TrainingPaused(
                f"run {run.run_id} was interrupted and has paused after step {outcome.step} of {plan.schedule.length}; "
                f"lakelens train --resume {run.run_id} continues from {outcome.last}",
                signal_number=controls.signal_number,
            )
        checkpoint = trial.finish(outcome)
        # Before the run is FINISHED: until then it can be resumed, which registers the model again.
        if config.tracking.register_as is not None:
            register_model(run.run_id, config.tracking.register_as, tracking_uri=run.tracking_uri)
        result = TrainResult(
            run_id=run.run_id,
            experiment_id=run.experiment_id,
            tracking_uri=run.tracking_uri,
            table=plan.data.training.location,
            version=plan.data.training.version,
            checkpoint=str(checkpoint.path),
            digest=checkpoint.digest,
            metrics=dict(outcome.metrics),
            best_epoch=outcome.best_epoch,
            epochs=outcome.epochs,
            ranks=outcome.ranks,
            seconds=round(time.perf_counter() - started, 3),
        )
        if config.job is not None:
            record_result(run, dataclasses.asdict(result))
    return result


@contextlib.contextmanager
def obeying_requests(run: RunReference, controls: Controls) -> Iterator[None]:
    """Carries out requests of other processes (`lakelens runs pause|kill RUN`) while the body trains the run."""
    killed = threading.Event()

    def obey(asked: str) -> None:
        logger.warning("%s of run %s was requested by another process", asked, run.run_id)
        if asked == "pause":
            controls.tell({"pause": True})
            return
        killed.set()
        controls.end()

    try:
        with requests_heard(run, obey):
            yield
    except RankFailedError as error:
        if not killed.is_set():
            raise
        raise TrainingKilled(f"run {run.run_id} was killed by another process") from error
