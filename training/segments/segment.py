"""A segment of a training on one rank: from its start or a checkpoint to a step, or to a pause or stop before it.

Records go through a file to the driver; only the driver writes to MLflow.

Errors that occur on every rank (a hyperparameter, a model that does not fit, a folder out of reach) are found before
the first step and returned as a value, so that the driver raises the error itself instead of a rank's log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ... import errors
from ...errors import LakelensError, NotFiniteError, TrialError
from ..checkpoints.checkpoint import Checkpoint, list_checkpoints, open_checkpoint
from .backend import backend_class
from .decisions import Progress, Reason
from .job import TrainingJob

if TYPE_CHECKING:
    from .prepared_rank import PreparedRank
    from .training_state import TrainingState
    from .world import World

_T = TypeVar("_T")
_Failure = tuple[str, str]


@dataclass(frozen=True)
class SegmentOutcome:
    """The result of rank 0.

    Attributes:
        reason: `completed`: the segment's last step was reached. `paused`: on request of the driver. `stopped`: by a
            decision or a callback.
        step: Steps trained, from the training's start.
        last: Folder of the checkpoint of that step; "" if none was kept.
        checkpoint: Folder of the best checkpoint; "" if it is not kept.
        digest: Its digest.
        best_epoch: Its epoch, from 1, or that of `last` if it is not kept; 0 if no validation gave a number.
        metrics: The metrics of that checkpoint; empty if it was written between validations.
        epochs: Trained epochs; one in progress counts.
        ranks: Number of ranks.
        failure: Name and message of an error of lakelens; then the other fields are unused.
    """

    reason: Reason = "completed"
    step: int = 0
    last: str = ""
    checkpoint: str = ""
    digest: str = ""
    best_epoch: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 0
    ranks: int = 0
    failure: _Failure | None = None

    def raise_failure(self) -> None:
        """Raises the ranks' error, with its original class.

        Raises:
            LakelensError: If there was one.
        """
        if self.failure is not None:
            name, message = self.failure
            raise getattr(errors, name, LakelensError)(message)


def train_segment(job: TrainingJob, start: Checkpoint | None = None, until: int | None = None) -> SegmentOutcome:
    """Trains one rank; returns rank 0's result.

    Args:
        job: The training job.
        start: The checkpoint to continue from; only rank 0 reads it. None is the training's start.
        until: The last step; None is the end of the training.
    """
    world = backend_class(job.entrypoint.framework).join()
    checkpoint = None
    state: TrainingState | None = None
    if start is not None:
        read, failure = _attempted(lambda: _read(start)) if world.rank == 0 else (None, None)
        state, failure = world.broadcast_object((read and read[1], failure), name="lakelens.start")
        if failure is not None:
            return SegmentOutcome(failure=failure)
        checkpoint = read and read[0]
    prepared, failure = _attempted(lambda: _prepared(job, world, state, checkpoint))
    failures = [met for met in world.allgather_object(failure, name="lakelens.prepared") if met is not None]
    if failures or prepared is None:
        return SegmentOutcome(failure=failures[0])
    return _train(prepared, state, checkpoint, until)


def _attempted(work: Callable[[], _T]) -> tuple[_T | None, _Failure | None]:
    try:
        return work(), None
    except LakelensError as error:
        return None, (type(error).__name__, str(error))


def _read(start: Checkpoint) -> tuple[Checkpoint, TrainingState]:
    from .training_state import TrainingState

    checkpoint = open_checkpoint(start.path)
    return checkpoint, TrainingState.of(checkpoint)


def _prepared(
    job: TrainingJob, world: World, state: TrainingState | None, checkpoint: Checkpoint | None
) -> PreparedRank:
    from .prepared_rank import PreparedRank

    return PreparedRank(job, world, state, checkpoint)


def _train(
    prepared: PreparedRank, state: TrainingState | None, checkpoint: Checkpoint | None, until: int | None
) -> SegmentOutcome:
    from ..rank.process_context import log_to_driver
    from .evaluation import evaluate
    from .training_loop import TrainingLoop

    loop = TrainingLoop(prepared, state, checkpoint, until)
    job = prepared.job
    try:
        reason = loop.train()
    except TrialError as error:  # occurs on every rank
        return SegmentOutcome(failure=(type(error).__name__, str(error)))
    for feed in filter(None, (job.training_feed, job.validation_feed)):
        if feed.skipped.count:
            log_to_driver(
                f"bad_rows skip: rank {prepared.world.rank} met bad rows {feed.skipped.count} times and left them out; "
                f"the first: {feed.skipped.first[0]}"
            )
        left = feed.left_out
        if left.small or left.beyond:
            log_to_driver(
                f"boxes: rank {prepared.world.rank} read {left.read} on {feed.split or 'all'} rows in all epochs; it "
                f"left out {left.small} narrower or lower than a pixel and {left.beyond} beyond data.box_limit"
            )
    progress, epochs = loop.progress, loop.epochs
    if progress.best is None and reason != "paused":
        return SegmentOutcome(
            failure=(
                "TrialError",
                f"{job.config.goal.metric} was NaN in each of the {progress.validations} validations, so none is "
                "the best; lower the learning rate, or look at the labels and the loss",
            )
        )
    found: dict[str, Any] = {"best_epoch": progress.best_epoch, "metrics": progress.best_metrics}
    if prepared.world.rank == 0:
        found |= _best(job, progress) or ({} if loop.last is None else told_by(loop.last))
        found["last"] = str(loop.last.path) if loop.last is not None else ""
        log_to_driver(_summary(job, progress, reason, epochs))
    ended = reason == "stopped" or (reason == "completed" and loop.step == job.schedule().length)
    if ended and _counts_wanted(prepared):
        step = progress.best_step if progress.best is not None and job.config.checkpoint_policy != "none" else loop.step
        try:
            evaluate(prepared, found.get("checkpoint") or found.get("last", ""), step)
        except NotFiniteError as error:
            return SegmentOutcome(failure=(type(error).__name__, str(error)))
    return SegmentOutcome(
        reason=reason,
        step=loop.step,
        epochs=epochs,
        ranks=prepared.world.size,
        **found,
    )


def _counts_wanted(prepared: PreparedRank) -> bool:
    """Returns whether the driver needs the task's counts; True if it is not asked or does not answer."""
    from ..rank import process_context

    if not prepared.job.asks_to_count:
        return True
    answer = process_context.ask({"ended": True}) if prepared.world.rank == 0 else None
    return bool(prepared.world.broadcast_object(answer, name="lakelens.counts_wanted").get("count", True))


def _best(job: TrainingJob, progress: Progress) -> dict[str, str]:
    for kept in list_checkpoints(job.folder):
        if kept.metadata.get("step") == progress.best_step:
            return {"checkpoint": str(kept.path), "digest": kept.digest}
    return {}


def told_by(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the epoch and metrics of the best checkpoint for a `SegmentOutcome`."""
    metrics = {name: float(value) for name, value in checkpoint.metadata["metrics"].items()}
    return {"best_epoch": int(checkpoint.metadata["epoch"]), "metrics": metrics}


def _summary(job: TrainingJob, progress: Progress, reason: Reason, epochs: int) -> str:
    from .report import described

    ended = f"{reason}; " if reason != "completed" else ""
    shown = described(progress.best_metrics)
    return f"{ended}best epoch by {job.config.goal.metric}: {progress.best_epoch}/{epochs}: {shown}"
