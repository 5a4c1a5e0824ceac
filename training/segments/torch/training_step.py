"""One step of a PyTorch model: loss, gradients over the rows of all ranks, and the update of the weights."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...process_group.group import entered, left
from .checks import loss_and_means, require_gradients

if TYPE_CHECKING:
    from ...configuration.sections import Optimizations
    from ...trials.torch_trial import TorchTrial
    from .world import TorchWorld


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
    """Trains a model step by step on this rank's rows.

    The loss of each rank counts by its share of the rows, so that the gradient is that of the mean over all rows of the
    global batch.
    """

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
        # Statistics stay this rank's own until they are averaged, as in the other backends.
        wrapped = DistributedDataParallel(self._loss, broadcast_buffers=False, init_sync=False)
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
