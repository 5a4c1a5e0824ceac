"""Journals of real searches whose trainings are a formula, on simulated slots and time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from lakelens.search.journal import Journal, Measurement, read_events
from lakelens.search.running.state import SearchState
from lakelens.search.running.trial_runs import searcher_of
from lakelens.training.configuration.experiment import ExperimentConfig

SPACE = {
    "learning_rate": {"type": "log", "base": 10, "minval": -5, "maxval": 0},
    "dropout": {"type": "double", "minval": 0, "maxval": 0.6},
    "layers": {"type": "int", "minval": 1, "maxval": 6},
    "optimizer": {"name": {"type": "categorical", "vals": ["adam", "sgd", "rmsprop"]}, "momentum": 0.9},
}
_EPOCH_S, _START_S, _SLOTS = 6.0, 4.0, 2


def accuracy(values: dict[str, Any], trial: int, epoch: int) -> float:
    """A learning curve: the learning rate decides most, the number of layers nothing, and a large rate diverges."""
    if values["learning_rate"] > 0.5:
        return math.nan
    far = abs(math.log10(values["learning_rate"]) + 2.5)
    best = 0.98 - 0.06 * far**2 - 0.25 * values["dropout"] ** 2 - 0.05 * (values["optimizer"]["name"] == "sgd")
    noise = 0.01 * math.sin(37.0 * trial + 11.0 * epoch) / epoch**0.5
    return max(best - (best - 0.1) * math.exp(-0.55 * epoch**0.7 * max(0.3, 1.2 - 0.3 * far)) + noise, 0.05)


class _TimedJournal(Journal):
    """A journal whose events have the simulated time."""

    now = 1_760_000_000.0

    def append(self, events: Iterable[Mapping[str, Any]]) -> None:
        super().append([{**event, "time": self.now} for event in events])


def write_journal(
    folder: Path, trials: int = 60, failing: Collection[int] = (), space: dict[str, Any] | None = None, **searcher: Any
) -> ExperimentConfig:
    """Runs a search with keys of its searcher and writes its journal below `folder`.

    Trials in `failing` fail in their first epoch; `space` are the hyperparameters.
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
    journal = _TimedJournal(folder / "journal")
    state = SearchState(searcher_of(config), config.goal, journal)
    state.start({"config": config.model_dump(mode="json", exclude_unset=True), "seed": 0, "unit": "epochs"})
    free = list(range(_SLOTS))
    running: list[tuple[float, int, int]] = []
    while not state.finished:
        while free and (trial := state.next_trial()) is not None:
            state.launch(trial, [slot := free.pop(0)], f"run-{trial.number}", trial.length)
            epochs = 0.5 if trial.number in failing else trial.asked - trial.length
            heapq.heappush(running, (journal.now + _START_S + _EPOCH_S * epochs, trial.number, slot))
        end, number, slot = heapq.heappop(running)
        free.append(slot)
        trial, before = state.trials[number], journal.now
        if number in failing:
            journal.now = end
            state.failed(trial, "ValueError: the shapes (64, 10) and (64, 1) differ")
            continue
        asked = trial.asked
        for epoch in range(int(trial.length) + 1, asked + 1):
            journal.now = max(end - _EPOCH_S * (asked - epoch), before)
            metric = accuracy(trial.hyperparameters, number, epoch)
            measured = Measurement(epoch, epoch, epoch, metric, {"val_accuracy": metric})
            state.validated(trial, measured, reached=epoch == asked)
        state.ended_segment(trial, asked)
    state.finish(state.best())
    return config


def events_in(keys: Mapping[str, Any], run_id: str = "*") -> list[dict[str, Any]]:
    """The events of a search that has run; of the only one below its experiment's folder if none is named."""
    (journal,) = Path(keys["checkpoint_storage"]["path"]).glob(f"{run_id}/journal")
    return read_events(journal)
