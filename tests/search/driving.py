"""Runs searchers without training anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakelens.search import Continue, Create, SearchMethod, Stop, create_searcher


def make(name: str, hyperparameters: Any = None, seed: int = 0, **keys: Any) -> SearchMethod:
    """A searcher with a metric and a length, and whatever else is given."""
    config = {"name": name, "metric": "loss", "max_length": {"epochs": 9}, **keys}
    return create_searcher(config, {} if hyperparameters is None else hyperparameters, seed)


def one_bracket(rungs: int = 3, **keys: Any) -> SearchMethod:
    """An adaptive searcher with a single bracket whose rungs are a factor of three apart."""
    keys = {"max_trials": 12, "divisor": 3, "max_length": {"batches": 3 ** (rungs - 1)}, **keys}
    return make("adaptive_asha", bracket_rungs=[rungs], **keys)


class Run:
    """A searcher, the operations that wait and the lengths that trials have reached."""

    def __init__(self, searcher: SearchMethod) -> None:
        self.searcher = searcher
        self.pending: dict[int, int] = {}
        self.reached: dict[int, int] = {}
        self.stopped: list[int] = []
        self.take(searcher.start())

    def take(self, operations: list[Any]) -> list[Any]:
        for operation in operations:
            if isinstance(operation, Create | Continue):
                assert operation.trial not in self.pending
                self.pending[operation.trial] = operation.length
            else:
                assert isinstance(operation, Stop)
                self.stopped.append(operation.trial)
        return operations

    def report(self, trial: int, metric: float) -> list[Any]:
        """Reaches what the trial was asked for."""
        length = self.reached[trial] = self.pending.pop(trial)
        return self.take(self.searcher.validated(trial, length, metric))

    def exit(self, trial: int, reason: str = "error") -> list[Any]:
        del self.pending[trial]
        return self.take(self.searcher.exited(trial, reason))

    def finish(self, metric_of: Callable[[int], float]) -> list[int]:
        """Runs to the end, the lowest trial first; returns the lengths reached by trial."""
        while self.pending:
            trial = min(self.pending)
            self.report(trial, metric_of(trial))
        assert self.searcher.finished
        return [self.reached[trial] for trial in sorted(self.reached)]
