"""The state of a training on one rank, in which Python's and NumPy's random states are equal for all backends.

Rank 0 gathers it from all ranks into a checkpoint, as JSON and arrays; nothing is pickled into a file.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .plain_values import decode, encode

if TYPE_CHECKING:
    import numpy as np

    from .plain_values import Arrays
    from .world import World


@dataclass
class RankState:
    """A rank's state."""

    values: dict[str, Any]  # JSON values
    arrays: Arrays = field(default_factory=dict)  # By name


def random_state(arrays: Arrays) -> dict[str, Any]:
    """Takes the random states of Python and NumPy in this process, as JSON values."""
    return {"python": encode(random.getstate(), arrays, "python"), "numpy": encode(_numpy_state(), {}, "numpy")}


def restore_random_state(state: RankState) -> None:
    """Restores what `random_state` took, from the values of a state."""
    random.setstate(decode(state.values["python"], state.arrays))
    _set_numpy_state(decode(state.values["numpy"], state.arrays))


def rank_seed(seed: int, rank: int) -> int:
    """Derives the seed of a rank's noise; rank 0 keeps the seed itself, so that one rank alone draws from it."""
    if rank == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def gather(state: RankState, world: World) -> list[RankState]:
    """Collects the states of all ranks on rank 0; every rank calls it.

    Arrays equal to rank 0's are not sent.

    Returns on rank 0 a state for each rank; on others an empty list.
    """
    if world.size == 1:
        return [state]
    mine = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in state.arrays.items()}
    first = world.broadcast_object(mine, name="lakelens.state.digests")
    other = {} if world.rank == 0 else {name: state.arrays[name] for name in mine if mine[name] != first.get(name)}
    gathered = world.allgather_object((state.values, other), name="lakelens.state")
    if world.rank > 0:
        return []
    return [state, *(RankState(values, arrays) for values, arrays in gathered[1:])]


def of_rank(states: Sequence[RankState], rank: int) -> RankState:
    """Returns a rank's state with the arrays that are equal to rank 0's."""
    return RankState(states[rank].values, {**states[0].arrays, **states[rank].arrays})


def _numpy_state() -> dict[str, Any]:
    import numpy as np

    state: Any = np.random.get_state(legacy=False)
    inner = state["state"]
    return {**state, "state": {"key": inner["key"].tolist(), "pos": int(inner["pos"])}}


def _set_numpy_state(state: Mapping[str, Any]) -> None:
    import numpy as np

    key: np.ndarray[Any, Any] = np.asarray(state["state"]["key"], np.uint32)
    np.random.set_state({**state, "state": {"key": key, "pos": state["state"]["pos"]}})
