"""How ranks learn what is decided about their trial: rank 0 asks, all ranks get the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .decisions import Answer, Decisions, Progress, Rules
from .retention import CheckpointRecord


class Verdicts:
    """A rank's access to the decisions about its trial.

    Args:
        rules: What decides.
        progress: How far the trial had come where the segment starts.
        checkpoints: The checkpoints that it has then; needed on rank 0.
        rank: This rank.
    """

    def __init__(self, rules: Rules, progress: Progress, checkpoints: Iterable[CheckpointRecord], rank: int) -> None:
        self._goal = rules.goal
        self._rank = rank
        self._own = Decisions(rules, progress, checkpoints)
        self.progress = progress

    def validated(self, step: int, epoch: int, metrics: Mapping[str, float]) -> Answer:
        """Gives what follows from a validation; every rank calls it, with equal metrics.

        Raises:
            TrialError: If the goal's metric is not among them; on every rank.
        """
        from . import distributed as world

        self._goal.value_in(metrics)
        given = None
        if self._rank == 0:
            given = self._ask({"validation": {"step": step, "epoch": epoch, "metrics": dict(metrics)}})
        answer = Answer.of(world.broadcast_object(given, 0, name="lakelens.answer"))
        self.progress = answer.progress
        return answer

    def wrote(self, name: str, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Reports a whole checkpoint, on rank 0; gives the names of those that are no longer kept."""
        written = {"name": name, "step": step, "metric": metrics.get(self._goal.metric)}
        removed: list[str] = self._ask({"checkpoint": written})["remove"]
        return removed

    def wants_pause(self) -> bool:
        """Tells whether the driver has told this rank to pause."""
        return False

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        return self._own.answer(question)
