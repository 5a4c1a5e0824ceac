"""What all ranks agree on: the driver's answers about a trial, and whether to end between two validations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checkpoints.checkpoint import list_checkpoints
from ..checkpoints.retention import CheckpointRecord
from ..rank import process_context
from ..trials.metrics import Goal
from .decisions import Answer, Decisions, Progress

if TYPE_CHECKING:
    from .backend import PreparedRank
    from .training_state import World

_EVERY_S = 0.5
_MOST_STEPS = 10_000


@dataclass(frozen=True)
class Wish:
    """The requests of at least one rank at a step."""

    pause: bool  # The driver's request to pause
    stop: bool  # A callback's request to stop


class Agreement:
    """Decides by rank 0's step time at which steps ranks compare their requests, and compares them by one allreduce."""

    def __init__(self, world: World, step: int) -> None:
        self._world = world
        self._last = step
        self._due = step + 1
        self._timed_from = time.perf_counter()

    def due(self, step: int) -> bool:
        """Returns whether ranks compare after a step."""
        return step >= self._due

    def reached(self, step: int, wish: Wish) -> Wish:
        """Compares the requests; every rank calls it after the same step."""
        now = time.perf_counter()
        interval = steps_between((now - self._timed_from) / max(1, step - self._last)) if self._world.rank == 0 else 0
        mine = np.asarray([int(wish.pause), int(wish.stop), interval], np.int64)
        ((pauses, stops, steps),) = self._world.sums([mine], name="lakelens.agreement")
        self._last, self._due, self._timed_from = step, step + int(steps), time.perf_counter()
        return Wish(bool(pauses), bool(stops))


def steps_between(step_s: float) -> int:
    """Chooses the number of steps between two comparisons."""
    return max(1, min(_MOST_STEPS, int(_EVERY_S / max(step_s, 1e-9))))


class Verdicts:
    """A rank's access to the decisions about its trial."""

    def __init__(self, prepared: PreparedRank, progress: Progress) -> None:
        self._prepared, self._goal, self._world = prepared, prepared.job.config.goal, prepared.world
        self._own: Decisions | None = None
        self.progress = progress

    def validated(self, step: int, epoch: int, metrics: Mapping[str, float]) -> Answer:
        """Returns the decision after a validation; every rank calls it, with equal metrics."""
        self._goal.value_in(metrics)
        given = None
        if self._world.rank == 0:
            given = self._ask({"validation": {"step": step, "epoch": epoch, "metrics": dict(metrics)}})
        answer = Answer.of(self._world.broadcast_object(given, name="lakelens.answer"))
        self.progress = answer.progress
        return answer

    def measured_again(self, step: int, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Takes metrics of the final weights, about which nothing is decided; returns whether they are the best."""
        value = metrics.get(self._goal.metric)
        if value is None or not self._goal.is_better(value, self.progress.best):
            return False
        kept = dict(metrics)
        self.progress = replace(self.progress, best=value, best_step=step, best_epoch=epoch, best_metrics=kept)
        return True

    def wrote(self, name: str, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Reports a complete checkpoint, on rank 0; returns the names of those no longer kept."""
        written = {"name": name, "step": step, "metric": metrics.get(self._goal.metric)}
        removed: list[str] = self._ask({"checkpoint": written})["remove"]
        return removed

    def wants_pause(self) -> bool:
        """Returns whether the driver has requested a pause."""
        return bool(process_context.told().get("pause"))

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        given = process_context.ask(question)
        if given:
            return given
        if self._own is None:  # a user's training function called `train_segment`: no driver answers, rank 0 decides
            job = self._prepared.job
            self._own = Decisions(job.config, self.progress, records_in(job.folder, self._goal))
        return self._own.answer(question)


def records_in(folder: Path, goal: Goal) -> list[CheckpointRecord]:
    """Describes a trial's checkpoints for the decisions about them."""
    return [
        CheckpointRecord(kept.name, 0, int(kept.metadata["step"]), goal.found_in(kept.metadata["metrics"]))
        for kept in list_checkpoints(folder)
    ]
