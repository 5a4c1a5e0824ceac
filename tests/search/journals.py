"""Journals of searches whose trainings are a formula: the real searchers decide, on simulated slots and time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from lakelens.search import Create, Stop, create_searcher
from lakelens.search.journal import Journal
from lakelens.search.settings import searcher_section
from lakelens.training.configuration.experiment import ExperimentConfig

SPACE = {
    "learning_rate": {"type": "log", "base": 10, "minval": -5, "maxval": 0},
    "dropout": {"type": "double", "minval": 0, "maxval": 0.6},
    "layers": {"type": "int", "minval": 1, "maxval": 6},
    "optimizer": {"name": {"type": "categorical", "vals": ["adam", "sgd", "rmsprop"]}, "momentum": 0.9},
}
_EPOCH_S, _START_S = 6.0, 4.0


def accuracy(values: dict[str, Any], trial: int, epoch: int) -> float:
    """A learning curve: the learning rate decides most, the number of layers nothing, and a large rate diverges."""
    if values["learning_rate"] > 0.5:
        return math.nan
    far = abs(math.log10(values["learning_rate"]) + 2.5)
    best = 0.98 - 0.06 * far**2 - 0.25 * values["dropout"] ** 2 - 0.05 * (values["optimizer"]["name"] == "sgd")
    noise = 0.01 * math.sin(37.0 * trial + 11.0 * epoch) / epoch**0.5
    return max(best - (best - 0.1) * math.exp(-0.55 * epoch**0.7 * max(0.3, 1.2 - 0.3 * far)) + noise, 0.05)


def write_journal(
    folder: Path,
    trials: int = 60,
    failing: Collection[int] = (),
    *,
    stop_after: int | None = None,
    space: dict[str, Any] | None = None,
    **searcher: Any,
) -> ExperimentConfig:
    """Runs a search and writes its journal below `folder`.

    Args:
        folder: The search's folder.
        trials: `max_trials`.
        failing: Trials that fail in their first epoch.
        stop_after: Events after which the driver is killed; None runs to the end.
        space: The hyperparameters.
        searcher: Further keys of the searcher.
    """
    section = {"name": "adaptive_asha", "metric": "val_accuracy", "max_length": {"epochs": 27}, "divisor": 3}
    config = ExperimentConfig.read(
        {
            "name": "digits-search",
            "data": {"table": "tables/digits", "version": 3},
            "hyperparameters": {"global_batch_size": 64, **(SPACE if space is None else space)},
            "searcher": {**section, "max_trials": trials, **searcher},
            "resources": {"slots_per_trial": 1},
        }
    )
    events = _events(config, set(failing))
    journal = Journal(folder / "journal")
    for event in events[:stop_after]:
        journal.append([event])
    return config


def _events(config: ExperimentConfig, failing: set[int]) -> list[dict[str, Any]]:
    searcher = create_searcher(searcher_section(config), config.hyperparameters)
    events: list[dict[str, Any]] = []
    clock = 1_760_000_000.0

    def note(kind: str, at: float, **keys: Any) -> None:
        events.append({"event": kind, "time": at, **keys})

    note("started", clock, config=config.model_dump(mode="json", exclude_unset=True), seed=0, unit="epochs")
    asked: dict[int, int] = {}
    reached: dict[int, int] = {}
    values: dict[int, dict[str, Any]] = {}

    def take(operations: list[Any], at: float) -> None:
        for operation in operations:
            if isinstance(operation, Create):
                values[operation.trial], reached[operation.trial] = operation.hyperparameters, 0
                note(
                    "created",
                    at,
                    trial=operation.trial,
                    hyperparameters=operation.hyperparameters,
                    length=operation.length,
                )
            elif isinstance(operation, Stop):
                note("stopped", at, trial=operation.trial, length=reached[operation.trial])
                continue
            else:
                note("continued", at, trial=operation.trial, length=operation.length)
            asked[operation.trial] = operation.length

    take(searcher.start(), clock)
    free = [0, 1]
    running: list[tuple[float, int, int]] = []
    while asked or running:
        while free and asked:
            trial = searcher.next_trial(asked)
            slot = free.pop(0)
            note("launched", clock, trial=trial, slots=[slot], from_length=reached[trial], run_id=f"run-{trial}")
            end = clock + _START_S + _EPOCH_S * (0.5 if trial in failing else asked[trial] - reached[trial])
            heapq.heappush(running, (end, trial, slot))
            reached[trial] = asked.pop(trial) if trial not in failing else asked.pop(trial) and 0
        before = clock
        clock, trial, slot = heapq.heappop(running)
        free.append(slot)
        if trial in failing:
            note("failed", clock, trial=trial, length=0, error="ValueError: the shapes (64, 10) and (64, 1) differ")
            take(searcher.exited(trial, "error"), clock)
            continue
        first = max((e["length"] for e in events if e["event"] == "validated" and e["trial"] == trial), default=0)
        for epoch in range(first + 1, reached[trial] + 1):
            metric = accuracy(values[trial], trial, epoch)
            at = max(clock - _EPOCH_S * (reached[trial] - epoch), before)
            values_there = {"metric": metric, "metrics": {"val_accuracy": metric}, "step": epoch, "epoch": epoch}
            note("validated", at, trial=trial, length=epoch, **values_there)
        operations = searcher.validated(trial, reached[trial], metric)
        state = searcher.states[trial]
        note(state if state in ("stopped", "completed") else "paused", clock, trial=trial, length=reached[trial])
        take([each for each in operations if not (isinstance(each, Stop) and each.trial == trial)], clock)
    best = [trial for trial in values if trial not in failing]
    note("finished", clock, **({"best_trial": best[0]} if best else {}))
    return events
