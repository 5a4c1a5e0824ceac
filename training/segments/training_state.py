"""The training state in a checkpoint, as JSON and arrays without pickle: position, progress, random states of ranks."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from ...errors import CheckpointError
from ..checkpoints.checkpoint import Checkpoint
from .decisions import Progress

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]


class NotPlainError(Exception):
    """Raised when a value is not a plain one."""


def encode(value: Any, arrays: Arrays, name: str) -> Any:
    """Returns a value as JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise NotPlainError
        arrays[name] = value
        return {"array": name}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [encode(item, arrays, f"{name}/{number}") for number, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(item, arrays, f"{name}/{key}") for key, item in value.items()}}
    raise NotPlainError


def decode(value: Any, arrays: Mapping[str, Any]) -> Any:
    """Restores the value that `encode` got."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "float":
        return float(inner)
    if kind == "array":
        return arrays[inner]
    if kind == "tuple":
        return tuple(decode(item, arrays) for item in inner)
    return {key: decode(item, arrays) for key, item in inner.items()}


def encode_attributes(holder: object, arrays: Arrays, name: str, skipped: frozenset[str]) -> dict[str, Any]:
    """Returns an object's plain attributes as JSON."""
    found = {}
    for key, value in vars(holder).items():
        if key in skipped:
            continue
        own: Arrays = {}
        try:
            found[key] = encode(value, own, f"{name}/{key}")
        except NotPlainError:
            continue
        arrays.update(own)
    return found


class World(Protocol):
    """All ranks of a job. Every rank calls the same methods in the same order; one process does not communicate."""

    rank: int  # This rank
    size: int  # Number of ranks

    def broadcast_object(self, value: Any, *, name: str) -> Any:
        """Returns rank 0's picklable object on every rank; those of other ranks are ignored."""

    def allgather_object(self, value: Any, *, name: str) -> list[Any]:
        """Returns the picklable objects of all ranks, by rank."""

    def sums(self, arrays: Sequence[np.ndarray[Any, Any]], *, name: str) -> list[np.ndarray[Any, Any]]:
        """Returns the sums over all ranks of arrays of numbers, whose shapes and types are equal on all ranks."""


@dataclass
class RankState:
    """A rank's state."""

    values: dict[str, Any]  # JSON values
    arrays: Arrays = field(default_factory=dict)  # By name


def random_state(arrays: Arrays) -> dict[str, Any]:
    """Takes the random states of Python and NumPy in this process, as JSON values."""
    state: Any = np.random.get_state(legacy=False)
    inner = state["state"]
    plain = {**state, "state": {"key": inner["key"].tolist(), "pos": int(inner["pos"])}}
    return {"python": encode(random.getstate(), arrays, "python"), "numpy": encode(plain, {}, "numpy")}


def restore_random_state(state: RankState) -> None:
    """Restores what `random_state` took, from the values of a state."""
    random.setstate(decode(state.values["python"], state.arrays))
    found = decode(state.values["numpy"], state.arrays)
    key: np.ndarray[Any, Any] = np.asarray(found["state"]["key"], np.uint32)
    np.random.set_state({**found, "state": {**found["state"], "key": key}})


def rank_seed(seed: int, rank: int) -> int:
    """Derives the seed of a rank's noise; rank 0 keeps the seed itself, so that one rank alone draws from it."""
    if rank == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{rank}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def gather(state: RankState, world: World) -> list[RankState]:
    """Collects the states of all ranks on rank 0, without arrays equal to rank 0's; empty on other ranks."""
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


@dataclass(frozen=True)
class TrainingState:
    """The state of a training after a step."""

    step: int  # Steps trained
    epoch: int  # Epochs completed
    steps_per_epoch: int  # Steps of an epoch
    seed: int  # The training's seed
    position: Mapping[str, Any]  # The feed's position
    progress: Progress  # The progress of decisions
    ranks: Sequence[RankState]  # The state of each rank
    stopped: bool = False  # Whether the training was stopped here before its end
    replicas: int = 1  # Devices of each rank

    def is_of(self, ranks: int, replicas: int) -> bool:
        """Returns whether it has the same numbers of ranks and devices, so that a training continues exactly."""
        return (len(self.ranks), self.replicas) == (ranks, replicas)

    @property
    def inside(self) -> bool:
        """Whether an epoch is in progress."""
        return self.step % self.steps_per_epoch != 0

    def as_json(self) -> dict[str, Any]:
        """Returns its JSON values."""
        ranks = [rank.values for rank in self.ranks]
        return {**vars(self), "position": dict(self.position), "progress": asdict(self.progress), "ranks": ranks}

    def arrays(self) -> Arrays:
        """Returns the arrays of all ranks."""
        return {
            f"{number}/{name}": array for number, rank in enumerate(self.ranks) for name, array in rank.arrays.items()
        }

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> TrainingState:
        """Reads the state of a checkpoint."""
        values = checkpoint.state()
        if "ranks" not in values:
            raise CheckpointError(
                f"{checkpoint.path} holds a model and no state to continue a training from; use it as warm_start"
            )
        arrays = checkpoint.arrays()
        ranks = [
            RankState(own, {key.removeprefix(f"{n}/"): each for key, each in arrays.items() if key.startswith(f"{n}/")})
            for n, own in enumerate(values["ranks"])
        ]
        return cls(**{**values, "progress": Progress.of(values["progress"]), "ranks": ranks})
