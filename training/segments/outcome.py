"""The outcome of a segment, which rank 0 returns to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ... import errors
from ...errors import LakelensError, TrialError
from ..checkpoints.checkpoint import Checkpoint
from ..rank import process_context
from .backend import PreparedRank
from .decisions import Reason
from .evaluation import evaluate
from .report import described
from .training_loop import TrainingLoop

Failure = tuple[str, str]


@dataclass(frozen=True)
class SegmentOutcome:
    """The result of rank 0."""

    # `completed`: the segment's last step was reached. `paused`: on request of the driver. `stopped`: by a decision or
    # a callback
    reason: Reason = "completed"
    step: int = 0  # Steps trained, from the training's start
    last: str = ""  # Folder of the checkpoint of that step; "" if none was kept
    checkpoint: str = ""  # Folder of the best checkpoint; "" if it is not kept
    digest: str = ""  # Its digest
    best_epoch: int = 0  # Its epoch, from 1, or that of `last` if it is not kept; 0 if no validation gave a number
    # The metrics of that checkpoint; empty if it was written between validations
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 0  # Trained epochs; one in progress counts
    ranks: int = 0  # Number of ranks
    failure: Failure | None = None  # Name and message of an error of lakelens; then the other fields are unused

    def raise_failure(self) -> None:
        """Raises the ranks' error, with its original class."""
        if self.failure is not None:
            name, message = self.failure
            raise getattr(errors, name, LakelensError)(message)


def told_by(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the epoch and metrics of the best checkpoint for a `SegmentOutcome`."""
    metrics = {name: float(value) for name, value in checkpoint.metadata["metrics"].items()}
    return {"best_epoch": int(checkpoint.metadata["epoch"]), "metrics": metrics}


def outcome_of(loop: TrainingLoop, reason: Reason) -> SegmentOutcome:
    """Reports the end of a segment, and counts for the task if the training has ended; every rank calls it."""
    prepared, progress = loop.prepared, loop.progress
    config = prepared.job.config
    _report_left_out_rows(prepared)
    if progress.best is None and reason != "paused":
        raise TrialError(
            f"{config.goal.metric} was NaN in each of the {progress.validations} validations, so none is "
            "the best; lower the learning rate, or look at the labels and the loss"
        )
    outcome = SegmentOutcome(
        reason=reason,
        step=loop.step,
        best_epoch=progress.best_epoch,
        metrics=progress.best_metrics,
        epochs=loop.epochs,
        ranks=prepared.world.size,
    )
    if prepared.world.rank == 0:
        why = f"{reason}; " if reason != "completed" else ""
        best = f"{progress.best_epoch}/{loop.epochs}: {described(progress.best_metrics)}"
        process_context.log_to_driver(f"{why}best epoch by {config.goal.metric}: {best}")
        outcome = _with_checkpoints(outcome, loop)
    ended = reason == "stopped" or (reason == "completed" and loop.step == prepared.job.schedule.length)
    if ended and _counts_wanted(prepared):
        is_kept = progress.best is not None and config.checkpoint_policy != "none"
        evaluate(prepared, outcome.checkpoint or outcome.last, progress.best_step if is_kept else loop.step)
    return outcome


def _with_checkpoints(outcome: SegmentOutcome, loop: TrainingLoop) -> SegmentOutcome:
    best, last = loop.best_checkpoint(), loop.last
    if last is not None:
        outcome = replace(outcome, last=str(last.path), **(told_by(last) if best is None else {}))
    return outcome if best is None else replace(outcome, checkpoint=str(best.path), digest=best.digest)


def _report_left_out_rows(prepared: PreparedRank) -> None:
    rank = f"rank {prepared.world.rank}"
    for feed in filter(None, (prepared.job.training_feed, prepared.job.validation_feed)):
        skipped, left, rows = feed.skipped, feed.left_out, f"{feed.split or 'all'} rows"
        if skipped.count:
            process_context.log_to_driver(
                f"bad_rows skip: {rank} met bad rows {skipped.count} times and left them out; the first: "
                f"{skipped.first[0]}"
            )
        if left.small or left.beyond:
            process_context.log_to_driver(
                f"boxes: {rank} read {left.read} on {rows} in all epochs; it left out {left.small} narrower or lower "
                f"than a pixel and {left.beyond} beyond data.box_limit"
            )
        if left.read and left.difficult == left.read:
            process_context.log_to_driver(
                f"boxes: all {left.read} that {rank} read on {rows} are difficult or of crowds, which a detector does "
                "not learn; see the table's profile"
            )
        if left.unannotated:
            process_context.log_to_driver(
                f"annotations: {rank} met rows without annotations (null) {left.unannotated} times on "
                f"{rows}, and left them out"
            )


def _counts_wanted(prepared: PreparedRank) -> bool:
    """Returns whether the driver needs the task's counts; True if it is not asked or does not answer."""
    if not prepared.job.asks_to_count:
        return True
    answer = process_context.ask({"ended": True}) if prepared.world.rank == 0 else None
    return bool(prepared.world.broadcast_object(answer, name="lakelens.counts_wanted").get("count", True))
