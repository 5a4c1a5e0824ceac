"""A position in a feed's order of rows: a small JSON value outside, an epoch and a row of it inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....errors import InvalidArgumentError
from .epoch_order import RankBatches
from .feed_plan import FeedPlan


@dataclass(frozen=True)
class Position:
    """A position in the order of rows."""

    epoch: int = 0  # The epoch
    row: int = 0  # The global row of that epoch that comes next


def position_of(plan: FeedPlan, position: Mapping[str, Any] | None) -> Position:
    """Reads a position; None is the start of epoch 0."""
    if position is None:
        return Position()
    try:
        epoch, row, order = int(position["epoch"]), int(position["row"]), position.get("order")
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"start={position!r} is no position; give what feed.position(...) returned"
        ) from error
    if order is not None and order != plan.fingerprint:
        raise InvalidArgumentError(
            f"start={dict(position)!r} belongs to another order than this feed's ({plan.fingerprint}): resume with the "
            "same table, version, split, seed, shuffle, lanes and memory_bytes"
        )
    if epoch < 0 or not 0 <= row <= plan.rows:
        raise InvalidArgumentError(f"start={dict(position)!r}: epoch must be >= 0 and row within 0 to {plan.rows}")
    return Position(epoch, row)


def position_after(
    plan: FeedPlan, start: Mapping[str, Any] | None, steps: int, global_batch_size: int
) -> dict[str, Any]:
    """Gives the position that is reached after a number of global batches."""
    if steps < 0:
        raise InvalidArgumentError(f"steps={steps}: a position lies after none or more batches")
    reached = position_of(plan, start)
    batches = RankBatches(plan.rows, global_batch_size)
    left = batches.steps(reached.row)
    if steps < left:
        reached = Position(reached.epoch, reached.row + steps * global_batch_size)
    else:
        epochs, steps = divmod(steps - left, batches.steps())
        reached = Position(reached.epoch + 1 + epochs, steps * global_batch_size)
    return {"epoch": reached.epoch, "row": reached.row, "order": plan.fingerprint}
