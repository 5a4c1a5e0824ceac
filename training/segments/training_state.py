"""The training state in a checkpoint, with which a training continues exactly: position, progress, ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import CheckpointError
from ..checkpoints.checkpoint import Checkpoint
from .decisions import Progress
from .rank_state import RankState

if TYPE_CHECKING:
    from .plain_values import Arrays


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
        return {
            "step": self.step,
            "epoch": self.epoch,
            "steps_per_epoch": self.steps_per_epoch,
            "seed": self.seed,
            "position": dict(self.position),
            "progress": self.progress.as_json(),
            "ranks": [rank.values for rank in self.ranks],
            "stopped": self.stopped,
            "replicas": self.replicas,
        }

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
        ranks = []
        for number, own in enumerate(values["ranks"]):
            prefix = f"{number}/"
            ranks.append(
                RankState(own, {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)})
            )
        return cls(**{**values, "progress": Progress.of(values["progress"]), "ranks": ranks})
