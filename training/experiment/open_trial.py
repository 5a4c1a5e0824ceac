"""An open trial: its MLflow run, its folder and its launcher, ready to train segments and to be finished."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import CheckpointError, TrackingError
from ...ledger.protection import using
from ...tracking.logged_models import log_model
from ...tracking.run_writer import RunRecord, RunWriter
from ...tracking.runs import CHECKPOINT_ARTIFACT, DIGEST_TAG, RunReference, resolve_tracking_uri, resumed_run, steps_of
from ..checkpoints.checkpoint import Checkpoint, last_checkpoint, open_checkpoint
from ..record.mlflow_model import mlflow_model_of
from ..record.run_files import log_run_files
from ..runner.runner import HorovodRunner
from ..segments.job import TrainingJob
from ..segments.outcome import SegmentOutcome
from ..trials.entrypoint import EntryPoint
from .begun_run import begun_run
from .experiment_plan import ExperimentPlan
from .run_folder import prune, resuming, run_folder
from .starts import TrainingStart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class OpenTrial:
    """A trial with its run and launcher."""

    job: TrainingJob  # The training job of every rank
    writer: RunWriter  # Writes into its MLflow run
    runner: HorovodRunner  # Where ranks run

    def finish(self, outcome: SegmentOutcome) -> Checkpoint:
        """Writes the trial's final checkpoint and model into its run."""
        job = self.job
        checkpoint = checkpoint_of(outcome, job.run)
        log_run_files(self.writer, job.config.make_task(), job.folder)
        record_outcome(self.writer, outcome, checkpoint, job.entrypoint)
        prune({0: job.folder}, job.config.checkpoint_storage.retention, job.config.goal, needed=[checkpoint.path])
        return checkpoint


@contextlib.contextmanager
def open_trial(
    plan: ExperimentPlan,
    start: TrainingStart,
    *,
    tags: Mapping[str, str],
    resumes: str | None,
    run_id: str | None,
    spark: SparkSession | None,
) -> Iterator[OpenTrial]:
    """Opens a trial, and ends its run: FINISHED, or FAILED when the body raises; a `run_id` names an empty run."""
    if resumes is None:
        opened = begun_run(plan, tags={**start.tags, **tags}, params=plan.params, run_id=run_id)
    else:
        opened = resumed_run(resolve_tracking_uri(plan.config.tracking.uri), resumes)
    # Of a job, another process may look for the run as soon as it has begun.
    held = resumes or run_id
    alone = contextlib.nullcontext() if held is None else resuming(plan.root, held)
    with alone, opened as run:
        recorded = set() if resumes is None else steps_of(run)
        feed = plan.data.training
        with contextlib.ExitStack() as opening:
            folder = opening.enter_context(run_folder(plan.root, run, stays=plan.config.job is not None))
            # VACUUM keeps the version while it is read, and then until the run is deleted, because a resume reads it.
            in_use = using(
                feed.plan.snapshot.table.at(None),
                feed.version,
                run.run_id,
                tracking_uri=run.tracking_uri,
                resumable=lambda: last_checkpoint(folder) is not None,
            )
            alive = opening.enter_context(in_use)
            writer = opening.enter_context(RunWriter(run, folder, recorded, alive))
            with start.laid_into(folder, writer) as weights:
                name = f"train {plan.data.described().name}"
                runner = plan.strategy.runner(plan.config.resources, name, spark)
                yield OpenTrial(plan.job(run, weights), writer, runner)


def checkpoint_of(outcome: SegmentOutcome, run: RunReference) -> Checkpoint:
    """Opens the best checkpoint that rank 0 has written, or the last one where the config keeps no best one."""
    if not outcome.checkpoint:
        return open_checkpoint(outcome.last)
    found = open_checkpoint(outcome.checkpoint)
    if found.digest != outcome.digest:
        raise CheckpointError(
            f"{found.path} has digest {found.digest}, rank 0 of run {run.run_id} wrote {outcome.digest}: it "
            "has changed since"
        )
    return found


def record_outcome(writer: RunWriter, outcome: SegmentOutcome, checkpoint: Checkpoint, entry: EntryPoint) -> None:
    """Writes a run's final checkpoint and model; the digest is written last, so that it marks a complete copy."""
    best = {f"best_{name}": value for name, value in outcome.metrics.items()}
    writer.log(RunRecord(best, outcome.best_epoch))
    writer.add(lambda client, run_id: client.log_artifacts(run_id, str(checkpoint.path), CHECKPOINT_ARTIFACT))
    try:
        with mlflow_model_of(checkpoint, entry) as model:
            writer.add(lambda client, run_id: log_model(client, run_id, model, outcome.best_epoch))
            writer.set_tags({DIGEST_TAG: checkpoint.digest})
            writer.finish()
    except TrackingError as error:
        raise TrackingError(f"{error}. The training has ended; its best checkpoint is {checkpoint.path}") from error
    except OSError as error:
        raise CheckpointError(
            f"the model cannot be written to {tempfile.gettempdir()} ({error}); free space there, or set TMPDIR. The "
            f"training has ended; its best checkpoint is {checkpoint.path}"
        ) from error
