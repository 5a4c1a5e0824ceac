"""The Backend: what the training loop needs of a framework; and a rank that is ready to train with one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..checkpoints.checkpoint import open_checkpoint
from ..checkpoints.manifests import KERAS, TORCH, checked_metadata
from ..runner.runner import KERAS_MODULES
from ..trials.context import TrialContext
from .checks import require_backend, require_reachable
from .job import TrainingJob

if TYPE_CHECKING:
    from ..checkpoints.checkpoint import Checkpoint
    from ..tasks.task import Counts
    from .report import Pace
    from .training_state import Arrays, RankState, TrainingState, World

    Logs = Mapping[str, Any]


class Backend(Protocol):
    """One rank's Trial, model, optimizer, batches and callbacks; all ranks call the same methods in the same order."""

    name: ClassVar[str]  # Its name in the manifests of checkpoints
    described: Mapping[str, Any]  # On rank 0 the task's description of the model's output

    def __init__(
        self,
        job: TrainingJob,
        context: TrialContext,
        world: Any,
        state: TrainingState | None,
        checkpoint: Checkpoint | None,
    ) -> None: ...

    @staticmethod
    def join() -> World:
        """Joins the other ranks of the job, and sets up this rank's devices."""

    @staticmethod
    def remember_settings() -> Callable[[], None]:
        """Remembers the framework's settings of this process; the result restores them, as in a fresh process."""

    @property
    def stop_requested(self) -> bool:
        """Whether a callback has requested the end of the training."""

    def begin(self, pace: Pace) -> None:
        """Gives every rank rank 0's weights and optimizer state, restores the state, and begins training after it."""

    def try_step(self) -> None:
        """Finds what is wrong with a training step, for a process that then ends; without other ranks."""

    def begin_epoch(self, step: int) -> None:
        """Begins an epoch after a step."""

    def train_step(self, step: int) -> Logs:
        """Trains on the batch after a step and returns the running metrics of this rank."""

    def end_epoch(self, step: int, metrics: Mapping[str, float]) -> None:
        """Ends the epoch that ends with a step, with the metrics over all ranks."""

    def measure(self, logs: Logs, rows: int) -> dict[str, float]:
        """Returns the training metrics over all ranks, from the logs of this rank's last step and its trained rows."""

    def average_statistics(self) -> None:
        """Averages untrained statistics, such as moving means, over all ranks."""

    def validate(self, *, in_epoch: bool) -> dict[str, float]:
        """Returns the metrics over the validation rows of all ranks, as `val_...`; callbacks take part `in_epoch`."""

    def count(self, described: Mapping[str, Any]) -> Counts:
        """Counts for the task's evaluation, on this rank's validation rows; see `Task.count`."""

    @property
    def picture(self) -> bytes | None:
        """The task's picture of the first rows of the last `count`, on rank 0; None if it has none."""

    def capture(self, *, inside: bool) -> RankState:
        """Takes the state of this rank; `inside` an epoch with running metrics and statistics."""

    def restore_running(self, state: RankState) -> None:
        """Restores the running metrics and statistics of a captured state."""

    def save(self, metadata: Mapping[str, Any], state: Mapping[str, Any], arrays: Arrays, name: str) -> Checkpoint:
        """Writes model and optimizer with a state as a checkpoint of the job's folder."""

    def load(self, path: Path | None) -> None:
        """Gives every rank the weights of a model file, which rank 0 reads; None takes rank 0's weights."""

    def finalize(self) -> bool:
        """Gives the model its final weights, such as averages that the optimizer keeps."""

    def end(self) -> None:
        """Ends the training."""


@dataclass(frozen=True)
class Framework:
    """A framework of models, known without importing it."""

    backend: tuple[str, str]  # Module and class of its backend
    packages: tuple[str, ...]  # Modules that a training needs
    preload: tuple[str, ...]  # Modules that ranks import while the launcher starts them
    needs_horovod: bool  # Whether several ranks communicate through Horovod


FRAMEWORKS: Mapping[str, Framework] = {
    KERAS: Framework(("keras.backend", "KerasBackend"), ("keras", "tensorflow"), KERAS_MODULES, needs_horovod=True),
    TORCH: Framework(
        ("torch.backend", "TorchBackend"), ("torch", "safetensors"), ("torch", "torch.distributed"), needs_horovod=False
    ),
}


def backend_class(framework: str) -> type[Backend]:
    """Returns the backend of a framework's Trials, and imports the framework."""
    module, name = FRAMEWORKS[framework].backend
    found: type[Backend] = getattr(importlib.import_module(f".{module}", __package__), name)
    return found


class PreparedRank:
    """Builds a rank's Trial and backend, without waiting for other ranks."""

    def __init__(
        self,
        job: TrainingJob,
        backend: type[Backend],
        world: World,
        state: TrainingState | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.job, self.world = job, world
        if world.rank == 0:
            require_reachable(job.folder, job.run)
        if checkpoint is not None:
            require_backend(checkpoint, job.entrypoint)
        elif job.warm_start is not None and world.rank == 0:
            require_backend(open_checkpoint(job.warm_start.folder), job.entrypoint)
        self.context = TrialContext(
            hyperparameters=job.config.trial_hyperparameters,
            task=job.config.make_task(),
            image_size=job.config.image_size,
            global_batch_size=job.config.global_batch_size,
            epochs=job.schedule.epochs,
            rank=world.rank,
            size=world.size,
            seed=job.config.reproducibility.experiment_seed,
            # The training step counts real rows itself: weights that correct a short batch would count twice.
            training_feed=job.training_feed.with_equal_weights(),
            validation_feed=job.validation_feed.with_equal_weights() if job.validation_feed is not None else None,
        )
        self.backend = backend(job, self.context, world, state, checkpoint)
        if world.rank == 0:
            checked_metadata(self.metadata(0, {}))  # a hyperparameter may be no JSON value

    def metadata(self, step: int, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Returns the metadata of a checkpoint after a step."""
        feed, (height, width) = self.job.training_feed, self.context.image_size
        return {
            "input": {"height": height, "width": width, "channels": 3},
            "labels": {str(number): name for number, name in enumerate(self.context.class_names)},
            "task": {"name": self.context.task.name, **self.backend.described},
            "backend": self.backend.name,
            "table": feed.location,
            "version": feed.version,
            "entrypoint": self.job.entrypoint.name,
            "hyperparameters": self.context.hyperparameters,
            "epoch": -(-step // self.job.schedule.steps_per_epoch),
            "step": step,
            "run_id": self.job.run.run_id,
            "metrics": dict(metrics),
            "global_batch_size": self.context.global_batch_size,
            "ranks": self.world.size,
            "seed": self.context.seed,
        }
