"""A PyTorch Trial that is ready to train: with model, optimizer, batches and validation built and checked."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ....errors import FeedError, TrialError
from ...checkpoints.torch_files import OPTIMIZER_FILE, load_weights, read_values
from ...checkpoints.torch_warm_start import take_weights
from ...rank.process_context import log_to_driver
from ...trials.torch_trial import TorchTrial
from ..rank_state import rank_seed
from .checks import check_model, check_scheduler, require_saved
from .learning_rate import LearningRate
from .process import set_up
from .rows import without_padding
from .training_step import TrainingStep
from .validation import Validation

if TYPE_CHECKING:
    from ...checkpoints.checkpoint import Checkpoint
    from ...trials.context import TrialContext
    from ..job import TrainingJob
    from ..training_state import TrainingState
    from .world import TorchWorld


class BuiltTrial:
    """Builds Trial, model, optimizer and batches of a rank, and checks them.

    Attributes:
        model: The model, on the rank's device; on rank 0 with the checkpoint's weights.
        described: The task's description of the model's output.
        optimizer: Its optimizer.
        learning_rate: Its learning rate, with the scheduler.
        step: Trains on a batch.
        validation: None if there is none.
    """

    def __init__(
        self,
        job: TrainingJob,
        context: TrialContext,
        world: TorchWorld,
        state: TrainingState | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._job, self._world = job, world
        rules = job.config.optimizations
        set_up(deterministic=job.config.reproducibility.deterministic)
        _seed(job.config.reproducibility.experiment_seed)
        self.trial = _torch_trial(job, context)
        self.model = self.trial.build_model()
        if isinstance(self.model, torch.nn.Module):
            self.model.to(world.device, memory_format=torch.channels_last)
        output = check_model(self.model, self.trial, world.device)
        self.described = context.task.describe_output(output)
        if rules.sync_batch_norm and world.size > 1:
            _require_rows_on_each_rank(job, world.size)
            self._synchronise_batch_norm()
        self.optimizer = self.trial.build_optimizer(self.model)
        self.learning_rate = LearningRate(self.trial, self.optimizer, rules, world.size, job.schedule.steps_per_epoch)
        check_scheduler(self.trial, self.learning_rate.scheduler, job.config.goal)
        self.step = TrainingStep(self.trial, self.model, self.optimizer, rules, world)
        self.validation = Validation.of(self.trial, job, world)
        self._given = self.trial.build_training_dataset()
        require_saved(self.trial, self.model)
        context.require_all_used()
        # From here on seeds are for noise: everything that must be equal on all ranks is built.
        resized = state is not None and not state.is_of(world.size, 1)
        seed = (
            job.config.reproducibility.experiment_seed
            if state is None or not resized
            else rank_seed(job.config.reproducibility.experiment_seed, state.step)
        )
        _seed(rank_seed(seed, world.rank))
        if checkpoint is not None:
            load_weights(self.model, checkpoint.model_path)
        elif world.rank == 0:
            self._begin()
        self.optimization = read_values(checkpoint.path / OPTIMIZER_FILE) if checkpoint is not None else None

    def _begin(self) -> None:
        """Starts a training on rank 0: takes weights of another model, reports enabled optimizations."""
        job = self._job
        if job.warm_start is not None:
            log_to_driver(f"warm_start {job.warm_start.uri}: {take_weights(self.model, job.warm_start)}")
        rate = [self.learning_rate.described] if self.learning_rate.described else []
        for line in [*job.config.optimizations.described(self._world.size, job.schedule.length), *rate]:
            log_to_driver(line)

    def _synchronise_batch_norm(self) -> None:
        if self._world.device.type == "cpu":
            raise TrialError(
                "optimizations.sync_batch_norm needs a GPU for each rank: PyTorch's SyncBatchNorm has no CPU version; "
                "remove the key"
            )
        self.model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(self.model)

    def batches(self, state: TrainingState | None) -> Iterator[tuple[torch.Tensor, Any]]:
        """Yields this rank's batches (images, labels) from a state's position on, without padding."""
        if self._given is not None:
            yield from self._custom_batches(self._given, state)
            return
        job, start = self._job, state.position if state is not None else None
        feed = job.training_feed.with_equal_weights().as_torch(
            job.config.global_batch_size,
            self._world.rank,
            self._world.size,
            epochs=max(1, job.schedule.epochs - (start["epoch"] if start is not None else 0)),
            image_size=job.config.image_size,
            start=start,
            **{**self.trial.context.task.feed_options, **job.config.data.dataset_options},
        )
        for images, labels, weights in feed:
            yield self._prepared(*without_padding(images, labels, weights))

    def _custom_batches(self, given: Iterable[Any], state: TrainingState | None) -> Iterator[tuple[torch.Tensor, Any]]:
        steps = self._job.schedule.steps_per_epoch
        done = state.step % steps if state is not None else 0
        while True:
            count = 0
            for count, (images, labels) in enumerate(given, 1):
                if count > done:
                    yield self._prepared(images, labels)
                if count == steps:
                    break
            if count < steps:
                raise FeedError(
                    f"build_training_dataset gave {count} batches of an epoch of {steps}; every rank must give "
                    "context.training_feed.steps_per_epoch(global_batch_size, size) of them"
                )
            done = 0

    def _prepared(self, images: torch.Tensor, labels: Any) -> tuple[torch.Tensor, Any]:
        return self.trial.preprocess(images, labels) if len(images) else (images, labels)


def _torch_trial(job: TrainingJob, context: TrialContext) -> TorchTrial:
    kind = job.entrypoint.load()
    if not issubclass(kind, TorchTrial):
        raise TrialError(f"entry point {job.entrypoint.name!r} is not a lakelens.TorchTrial")
    return kind(context)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _require_rows_on_each_rank(job: TrainingJob, ranks: int) -> None:
    """Checks that no rank is without rows in a step: batch normalization waits for each rank."""
    last = job.training_feed.rows % job.config.global_batch_size
    if 0 < last < ranks:
        raise TrialError(
            f"optimizations.sync_batch_norm: each rank needs rows in every step, and the last batch of an epoch has "
            f"{last} for {ranks} ranks; change global_batch_size, or remove the key"
        )
