"""The driver's part of a trial: launches segments, decides at validations, pauses, and restarts after failures."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import RankFailedError
from ...pausing import pausing
from ...progress import ProgressBar, ProgressLines, shown_progress
from ..checkpoints.checkpoint import Checkpoint, last_checkpoint, sweep
from ..runner.placement.conversation import Controls
from ..runner.runner import HorovodRunner
from ..segments.decisions import Decisions, Progress
from ..segments.job import TrainingJob
from ..segments.outcome import SegmentOutcome
from ..segments.segment import train_segment
from ..segments.training_state import TrainingState
from ..segments.verdicts import records_in

logger = logging.getLogger(__name__)


def run_segment(
    runner: HorovodRunner,
    job: TrainingJob,
    *,
    start: Checkpoint | None = None,
    until: int | None = None,
    controls: Controls | None = None,
) -> SegmentOutcome:
    """Trains a segment on the runner's ranks; a dead rank restarts it, and the first Ctrl-C or SIGTERM pauses it."""
    controls = controls or Controls()
    restarts, max_restarts = 0, job.config.max_restarts
    notice = "pausing after a checkpoint" if runner.can_pause else None
    with pausing(controls.pause, notice), shown_progress(runner.name or "train") as bar:
        job = replace(job, reports_progress=True)
        bar.say(
            f"{runner.name or 'train'}: starting the ranks, which load their framework and open {job.config.data.table}"
        )
        while True:
            progress = TrainingState.of(start).progress if start is not None else Progress()
            decisions = Decisions(job.config, progress, records_in(job.folder, job.config.goal))
            try:
                outcome: SegmentOutcome = runner.run_with(
                    train_segment,
                    {"job": job, "start": start, "until": until},
                    on_question=partial(_answer, decisions, job, bar),
                    controls=controls,
                    on_message=bar.write if isinstance(bar, ProgressBar) else None,
                    attempt=restarts,
                )
                outcome.raise_failure()
                bar.ended()
                return outcome
            except RankFailedError as error:
                # A cancelled or paused job is not restarted.
                if error.reason == "cancelled" or controls.since(0) or restarts >= max_restarts:
                    raise
                restarts += 1
                sweep(job.folder)  # every rank has ended, so half-written checkpoints stay incomplete
                start = last_checkpoint(job.folder) or start
                place = start.name if start is not None else "the beginning"
                logger.warning("%s Resuming from %s (%d of %d restarts).", error.summary, place, restarts, max_restarts)


def _answer(
    decisions: Decisions, job: TrainingJob, bar: ProgressBar | ProgressLines, _rank: int, question: dict[str, Any]
) -> dict[str, Any]:
    """Answers a rank's question, and shows its progress."""
    schedule, reached = job.schedule, question.get("progress") or question.get("validation")
    if reached is not None:
        step, metric, size = reached["step"], job.config.goal.metric, job.config.global_batch_size
        if metric in reached.get("metrics", {}):
            bar.measured(metric, reached["metrics"][metric])
        epoch = min(schedule.epochs, schedule.epoch(step) + 1)
        place = f"epoch {epoch}/{schedule.epochs}, step {step}/{schedule.length}"
        bar.reached(place, step * size, schedule.length * size)
    return {} if "progress" in question else decisions.answer(question)
