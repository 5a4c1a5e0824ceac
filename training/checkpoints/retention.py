"""Decides which checkpoints of an experiment are kept."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class CheckpointRecord:
    """One checkpoint as seen by retention."""

    name: str  # Its identity
    trial: Hashable  # The trial that wrote it
    step: int  # Training steps completed when it was written
    metric: float | None  # The validation metric at that step; without one (None or NaN) it is never a best checkpoint


@dataclass(frozen=True)
class Retention:
    """How many checkpoints are kept; the rules add up, as in Determined's `checkpoint_storage`."""

    save_experiment_best: int = 0  # The best of the whole experiment
    save_trial_best: int = 1  # The best of each trial
    save_trial_latest: int = 1  # The latest of each trial

    def while_running(self) -> Retention:
        """Returns the rules of a trial that may be continued: its latest checkpoint always stays."""
        return replace(self, save_trial_latest=max(1, self.save_trial_latest))


def checkpoints_to_keep(
    records: Iterable[CheckpointRecord], retention: Retention, *, smaller_is_better: bool
) -> set[str]:
    """Names the checkpoints that at least one rule keeps; of equal metrics the earlier one is the better one."""
    everything, sign = list(records), 1 if smaller_is_better else -1
    ranked = sorted(
        (record for record in everything if record.metric is not None and not math.isnan(record.metric)),
        key=lambda record: (sign * (record.metric or 0.0), record.step, record.name),
    )
    kept = {record.name for record in ranked[: retention.save_experiment_best]}
    for trial in {record.trial for record in everything}:
        best = [record for record in ranked if record.trial == trial]
        latest = sorted((record for record in everything if record.trial == trial), key=lambda record: -record.step)
        kept |= {record.name for record in best[: retention.save_trial_best]}
        kept |= {record.name for record in latest[: retention.save_trial_latest]}
    return kept
