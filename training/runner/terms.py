"""The words of the caller's API for ranks, for messages: HorovodRunner's `np`, or the keys of an experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """How a caller asks for ranks; `{}` stands for their number.

    Attributes:
        ranks: A number of ranks.
        one_rank: One rank.
        every_slot: A rank on every slot.
        on_driver: Ranks on the driver.
    """

    ranks: str
    one_rank: str
    every_slot: str
    on_driver: str


RUNNER_TERMS = Terms("np={}", "np=-1 or np=1", "np=0", "np=-{}")
EXPERIMENT_TERMS = Terms("slots_per_trial={}", "slots_per_trial=1", "slots_per_trial=0", "strategy=horovod_local")
