"""The words of the caller's API for ranks, for messages: HorovodRunner's `np`, or the keys of an experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """How a caller asks for ranks; `{}` stands for their number."""

    ranks: str  # A number of ranks
    one_rank: str  # One rank
    every_slot: str  # A rank on every slot
    on_driver: str  # Ranks on the driver


RUNNER_TERMS = Terms("np={}", "np=-1 or np=1", "np=0", "np=-{}")
EXPERIMENT_TERMS = Terms("slots_per_trial={}", "slots_per_trial=1", "slots_per_trial=0", "strategy=horovod_local")
