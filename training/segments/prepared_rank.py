"""A rank that is ready to train: the Trial's context, the backend with its model, the metadata of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..checkpoints.checkpoint import open_checkpoint
from ..checkpoints.manifests import checked_metadata
from ..trials.context import TrialContext
from .backend import Backend
from .checks import require_backend, require_reachable
from .job import TrainingJob

if TYPE_CHECKING:
    from ..checkpoints.checkpoint import Checkpoint
    from .training_state import TrainingState
    from .world import World


class PreparedRank:
    """Builds a rank's Trial and backend, without waiting for other ranks.

    Attributes:
        context: The job as the Trial sees it.
        backend: The Trial's model, optimizer and batches.
    """

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
