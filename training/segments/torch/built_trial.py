"""A PyTorch Trial that is ready to train: model, optimizer, learning rate, batches and the training step, checked."""

from __future__ import annotations

import contextlib
import inspect
import math
import random
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from ....errors import FeedError, TrialError
from ...checkpoints.torch_files import OPTIMIZER_FILE, load_weights, read_values
from ...checkpoints.warm_start import take_tensors
from ...process_group import entered, left
from ...rank.process_context import log_to_driver
from ...trials.torch_trial import TorchTrial
from ..training_state import rank_seed
from .checks import check_model, check_scheduler, loss_and_means, require_gradients, require_saved
from .validation import Validation
from .world import set_up, without_padding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...checkpoints.checkpoint import Checkpoint
    from ...configuration.sections import Optimizations
    from ...trials.context import TrialContext
    from ..job import TrainingJob
    from ..training_state import TrainingState
    from .world import TorchWorld


class LearningRate:
    """The rates of an optimizer's parameter groups, with the Trial's scheduler, if it has one."""

    def __init__(
        self,
        trial: TorchTrial,
        optimizer: torch.optim.Optimizer,
        rules: Optimizations,
        ranks: int,
        steps_per_epoch: int,
    ) -> None:
        self._optimizer, self._interval = optimizer, trial.scheduler_interval
        self._warmup_steps = math.ceil(rules.warmup_epochs * steps_per_epoch)
        factor = rules.factor(ranks)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        self._targets = [group["lr"] for group in optimizer.param_groups]
        self.scheduler: Any = trial.build_scheduler(optimizer)
        if self.scheduler is not None and self._warmup_steps:
            raise TrialError(
                "optimizations.warmup_epochs raises the learning rate, and build_scheduler returned "
                f"{type(self.scheduler).__name__}, which sets it too; put LinearLR into build_scheduler, or "
                "remove the key"
            )
        self.described = ""
        if rules.learning_rate_scaling != "none":
            self.described = f"learning rate x {factor:g} ({rules.learning_rate_scaling}, {ranks} ranks)"
        if self._warmup_steps:
            self.described += f"{', ' if self.described else 'learning rate '}reached after {self._warmup_steps} steps"

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Restores the scheduler from its `state_dict`; None leaves it as it is."""
        if self.scheduler is None or state is None:
            return
        self.scheduler.load_state_dict(state)
        if isinstance(self.scheduler, LambdaLR):  # its functions may now be those of a longer training
            rates = zip(self._optimizer.param_groups, self.scheduler.base_lrs, self.scheduler.lr_lambdas, strict=True)
            for group, base, factor in rates:
                group["lr"] = base * factor(self.scheduler.last_epoch)

    def set_before(self, step: int) -> None:
        """Sets the rates of a step of the warm-up; later it leaves them alone."""
        if step < self._warmup_steps:
            for group, target in zip(self._optimizer.param_groups, self._targets, strict=True):
                group["lr"] = target * (step + 1) / self._warmup_steps

    def updated(self) -> None:
        """Lets the scheduler step after an update of the weights, if it counts these."""
        if self.scheduler is not None and self._interval == "step":
            self.scheduler.step()

    def ended_epoch(self, metric: float | None) -> None:
        """Lets the scheduler step after an epoch, if it counts these."""
        if self.scheduler is None or self._interval != "epoch":
            return
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
        elif metric is not None:
            self.scheduler.step(metric)


class _Loss(torch.nn.Module):
    """The Trial's step as a forward pass, so that DistributedDataParallel sees all of it."""

    def __init__(self, trial: TorchTrial, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self._trial = trial

    def forward(self, images: torch.Tensor, labels: Any) -> Any:
        """Computes the loss; a rank without rows takes part with zero."""
        if len(images) == 0:
            return sum((each.sum() for each in self.model.parameters() if each.requires_grad), torch.zeros(())) * 0.0
        return self._trial.training_step(self.model, (images, labels))


class TrainingStep:
    """Trains a model step by step on this rank's rows, whose share of all rows is the weight of their loss."""

    def __init__(
        self,
        trial: TorchTrial,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        rules: Optimizations,
        world: TorchWorld,
    ) -> None:
        self._model, self._optimizer, self._rules, self._world = model, optimizer, rules, world
        self._loss: torch.nn.Module = _Loss(trial, model)
        self._dtype = getattr(torch, rules.mixed_precision) if rules.mixed_precision is not None else None
        # float16 gradients underflow without a scale.
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self._dtype is torch.float16)
        self._checked = False

    def distribute(self) -> None:
        """Gives every rank rank 0's weights, and lets gradients be combined over ranks."""
        if self._world.size == 1:
            return
        self._world.share([each.data for each in (*self._model.parameters(), *self._model.buffers())])
        # PyTorch before 2.7 always compares and sends once more what all ranks have by now.
        known = inspect.signature(DistributedDataParallel).parameters
        unsynced: dict[str, Any] = {"init_sync": False} if "init_sync" in known else {}
        # Statistics stay this rank's own until they are averaged, as in the other backends.
        wrapped = DistributedDataParallel(self._loss, broadcast_buffers=False, **unsynced)
        wrapped.register_comm_hook(self._rules.gradient_compression == "fp16", _summed)
        self._loss = wrapped

    def __call__(self, images: torch.Tensor, labels: Any, rows: int, *, updates: bool) -> dict[str, torch.Tensor]:
        """Trains on the rows of this rank."""
        waits: AbstractContextManager[Any] = contextlib.nullcontext()
        if isinstance(self._loss, DistributedDataParallel) and not updates:
            waits = self._loss.no_sync()
        with waits:
            with torch.autocast(self._world.device.type, self._dtype, enabled=self._dtype is not None):
                loss, means = loss_and_means(self._loss(images, labels))
            if not self._checked:
                require_gradients(loss, self._model, self._world)
                self._checked = True
            # A step of bad rows alone has none to share.
            share = len(images) / max(rows, 1) / self._rules.aggregation_frequency
            self.scaler.scale(loss * share).backward()
        if updates:
            self._update()
        return means

    def _update(self) -> None:
        if self._rules.gradient_clip_norm is not None:
            self.scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._rules.gradient_clip_norm)
        self.scaler.step(self._optimizer)
        self.scaler.update()
        self._optimizer.zero_grad(set_to_none=True)


def _summed(compressed: bool, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sums a bucket of gradients over ranks, each counted by its share already, and counts the collective."""
    gradients = bucket.buffer()
    sent = gradients.to(torch.float16) if compressed else gradients
    entered()
    future = dist.all_reduce(sent, async_op=True).get_future()

    def done(finished: torch.futures.Future[Any]) -> torch.Tensor:
        total: torch.Tensor = left(finished.value()[0])
        return gradients.copy_(total) if compressed else total

    return future.then(done)


# DistributedDataParallel checks the hook's annotations, which this module's are texts.
_summed.__annotations__.update({"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]})


class BuiltTrial:
    """Builds and checks Trial, model, optimizer and batches of a rank; the model has the checkpoint's weights."""

    def __init__(
        self,
        job: TrainingJob,
        context: TrialContext,
        world: TorchWorld,
        state: TrainingState | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._job, self._world = job, world
        rules, seed = job.config.optimizations, job.config.reproducibility.experiment_seed
        set_up(deterministic=job.config.reproducibility.deterministic)
        _seed(seed)
        self.trial = _torch_trial(job, context)
        self.model = self.trial.build_model()
        if isinstance(self.model, torch.nn.Module):
            self.model.to(world.device, memory_format=torch.channels_last)
        output = check_model(self.model, self.trial, world.device)
        self.described = context.task.describe_output(output)
        if rules.sync_batch_norm and world.size > 1:
            self._synchronise_batch_norm()
        self.optimizer = self.trial.build_optimizer(self.model)
        self.learning_rate = LearningRate(self.trial, self.optimizer, rules, world.size, job.schedule.steps_per_epoch)
        check_scheduler(self.trial, self.learning_rate.scheduler, job.config.goal)
        self.step = TrainingStep(self.trial, self.model, self.optimizer, rules, world)
        feed = job.validation_feed
        self.validation = Validation(self.trial, job, feed, world) if feed is not None else None
        self._given = self.trial.build_training_dataset()
        require_saved(self.trial, self.model)
        context.require_all_used()
        # From here on seeds are for noise: everything that must be equal on all ranks is built.
        if state is not None and not state.is_of(world.size, 1):
            seed = rank_seed(seed, state.step)
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
            log_to_driver(f"warm_start {job.warm_start.uri}: {take_tensors(self.model, job.warm_start)}")
        rate = [self.learning_rate.described] if self.learning_rate.described else []
        for line in [*job.config.optimizations.described(self._world.size, job.schedule.length), *rate]:
            log_to_driver(line)

    def _synchronise_batch_norm(self) -> None:
        """Converts the layers, if no rank is without rows in a step: batch normalization waits for each rank."""
        ranks = self._world.size
        last = self._job.training_feed.rows % self._job.config.global_batch_size
        if 0 < last < ranks:
            raise TrialError(
                f"optimizations.sync_batch_norm: each rank needs rows in every step, and the last batch of an epoch "
                f"has {last} for {ranks} ranks; change global_batch_size, or remove the key"
            )
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
