"""One rank's part of a plan's epochs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from .plan.epoch_order import RankBatches
from .plan.feed_plan import FeedPlan
from .plan.position import Position
from .read_options import Reading


@dataclass(frozen=True)
class Shard:
    """The rows that one rank reads, batch by batch."""

    plan: FeedPlan  # What is read
    batches: RankBatches  # Which rows of the global order are this rank's
    start: Position  # Where to begin
    epochs: int | None  # How many epochs, the first one counted from `start`; None never ends
    reading: Reading  # How rows are read

    @property
    def steps(self) -> int | None:
        """Batches of all epochs; None if they never end."""
        if self.epochs is None:
            return None
        return self.batches.steps(self.start.row) + (self.epochs - 1) * self.batches.steps()

    def epoch_numbers(self) -> Iterable[int]:
        """Counts the epochs."""
        first = self.start.epoch
        return itertools.count(first) if self.epochs is None else range(first, first + self.epochs)

    def first_row(self, epoch: int) -> int:
        """Gives the global row of an epoch that the shard begins with."""
        return self.start.row if epoch == self.start.epoch else 0
