"""The Backend of PyTorch models: gradients by DistributedDataParallel, checkpoints as safetensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from ....errors import FeedError
from ...checkpoints.checkpoint import Checkpoint, state_files, write_checkpoint
from ...checkpoints.manifests import TORCH
from ...checkpoints.torch_files import load_weights, model_files
from ...rank.process_context import log_to_driver
from ..training_state import RankState, of_rank, random_state, restore_random_state
from .built_trial import BuiltTrial
from .validation import MetricSums
from .world import TorchWorld, on_device, remember_settings, set_to_training

if TYPE_CHECKING:
    from ...tasks.task import Counts
    from ...trials.context import TrialContext
    from ..job import TrainingJob
    from ..report import Pace
    from ..training_state import Arrays, TrainingState

_RANDOM, _RANDOM_GPU = "torch_random", "torch_random_gpu"
_GRADIENT, _STATISTIC, _RUNNING = "gradient/", "statistic/", "running/"


def statistics_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Finds floating-point buffers, such as the running means of batch normalization, by name."""
    return {name: each for name, each in model.named_buffers() if each.is_floating_point()}


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = tensor.detach().float().cpu().numpy().copy()
    return found


class TorchBackend:
    """A PyTorch model in training; see `Backend`."""

    name: ClassVar[str] = TORCH

    def __init__(
        self,
        job: TrainingJob,
        context: TrialContext,
        world: TorchWorld,
        state: TrainingState | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._job, self._world, self._state = job, world, state
        self._built = BuiltTrial(job, context, world, state, checkpoint)
        self._model = self._built.model
        self.described: Mapping[str, Any] = self._built.described
        self._running = MetricSums()

    @staticmethod
    def join() -> TorchWorld:
        """Joins the ranks of the process group; see `Backend.join`."""
        return TorchWorld()

    @staticmethod
    def remember_settings() -> Callable[[], None]:
        """Remembers settings of PyTorch; see `Backend.remember_settings`."""
        return remember_settings()

    @property
    def stop_requested(self) -> bool:
        """Whether the Trial has set `stop_training`."""
        return bool(self._built.trial.stop_training)

    def begin(self, pace: Pace) -> None:
        """Gives all ranks rank 0's weights and optimizer state, and opens the batches; see `Backend.begin`."""
        self._pace = pace
        set_to_training(self._model)
        self._built.step.distribute()
        if self._state is not None:
            self._restore(self._state)
        self._batches = self._built.batches(self._state)

    def try_step(self) -> None:
        """Trains on rank 0's share of the first batch; see `Backend.try_step`."""
        images, labels = next(self._built.batches(None))
        self._world.size = 1
        set_to_training(self._model)
        given = on_device(images, self._world.device), on_device(labels, self._world.device)
        self._built.step(*given, len(images), updates=True)

    def begin_epoch(self, step: int) -> None:
        """Resets the metrics; see `Backend.begin_epoch`."""
        self._running = MetricSums()

    def train_step(self, step: int) -> Mapping[str, Any]:
        """Trains on one batch; see `Backend.train_step`."""
        images, labels = self._next_batch()
        rows = len(images)
        ((total,),) = self._world.sums([np.array([rows])], name="lakelens.rows")
        updates = (step + 1) % self._job.config.optimizations.aggregation_frequency == 0
        self._built.learning_rate.set_before(step)
        means = self._built.step(images, labels, int(total), updates=updates)
        if updates:
            self._built.learning_rate.updated()
        self._running.add(means, rows)
        return {}

    def end_epoch(self, step: int, metrics: Mapping[str, float]) -> None:
        """Lets the scheduler step; see `Backend.end_epoch`."""
        self._built.learning_rate.ended_epoch(metrics.get(self._job.config.goal.metric))

    def measure(self, logs: Mapping[str, Any], rows: int) -> dict[str, float]:
        """Sums the metrics over ranks; see `Backend.measure`."""
        return self._running.over_ranks(self._world)

    def average_statistics(self) -> None:
        """Averages running means and variances; see `Backend.average_statistics`."""
        for buffer in statistics_of(self._model).values() if self._world.size > 1 else ():
            self._world.add_up(buffer)
            buffer /= self._world.size

    def validate(self, *, in_epoch: bool) -> dict[str, float]:
        """Measures the model on the validation rows; see `Backend.validate`."""
        validation = self._built.validation
        return {} if validation is None else validation.measure(self._model, self.described)

    def count(self, described: Mapping[str, Any]) -> Counts:
        """Runs the model on the validation rows; see `Backend.count`."""
        validation, task = self._built.validation, self._built.trial.context.task
        return task.no_counts() if validation is None else validation.count(self._model, described)

    @property
    def picture(self) -> bytes | None:
        """The picture of the last `count`; see `Backend.picture`."""
        return None if self._built.validation is None else self._built.validation.picture

    def capture(self, *, inside: bool) -> RankState:
        """Takes random states, statistics and gradients of this rank; see `Backend.capture`."""
        arrays: Arrays = {_RANDOM: torch.get_rng_state().numpy()}
        values = random_state(arrays)
        if torch.cuda.is_available():
            arrays[_RANDOM_GPU] = torch.cuda.get_rng_state().numpy()
        if inside:
            arrays |= {f"{_RUNNING}{name}": each for name, each in self._running.arrays().items()}
            arrays |= {f"{_STATISTIC}{name}": _array(each) for name, each in statistics_of(self._model).items()}
        gradients = {name: each.grad for name, each in self._model.named_parameters() if each.grad is not None}
        arrays |= {f"{_GRADIENT}{name}": _array(each) for name, each in gradients.items()}
        return RankState(values, arrays)

    def restore_running(self, state: RankState) -> None:
        """Restores the statistics; see `Backend.restore_running`."""
        for name, buffer in statistics_of(self._model).items():
            if f"{_STATISTIC}{name}" in state.arrays:  # else the model's file has it
                buffer.copy_(torch.from_numpy(state.arrays[f"{_STATISTIC}{name}"].copy()))

    def save(self, metadata: Mapping[str, Any], state: Mapping[str, Any], arrays: Arrays, name: str) -> Checkpoint:
        """Writes model and optimizer as safetensors, with the state; see `Backend.save`."""
        files = {**model_files(self._model, self._optimization()), **state_files(state, arrays)}
        return write_checkpoint(self._job.folder, files=files, metadata=metadata, name=name)

    def load(self, path: Path | None) -> None:
        """Reads a model file on rank 0 and broadcasts; see `Backend.load`."""
        if path is not None and self._world.rank == 0:
            load_weights(self._model, path)
        self._world.share([each.data for each in (*self._model.parameters(), *self._model.buffers())])

    def finalize(self) -> bool:
        """Changes nothing: the optimizers of PyTorch keep no averages; see `Backend.finalize`."""
        return False

    def end(self) -> None:
        """Ends the training; see `Backend.end`."""

    def _optimization(self) -> dict[str, Any]:
        scheduler = self._built.learning_rate.scheduler
        return {
            "optimizer": self._built.optimizer.state_dict(),
            "scheduler": scheduler.state_dict() if scheduler is not None else None,
            "scaler": self._built.step.scaler.state_dict(),
        }

    def _restore(self, state: TrainingState) -> None:
        kept = self._world.broadcast_object(self._built.optimization, name="lakelens.optimization")
        self._built.optimizer.load_state_dict(kept["optimizer"])
        self._built.step.scaler.load_state_dict(kept["scaler"])
        self._built.learning_rate.restore(kept["scheduler"])
        if not state.is_of(self._world.size, self._job.replicas):
            log_to_driver(
                f"the checkpoint is of {len(state.ranks)} ranks, this training has {self._world.size}: noise is drawn "
                "again, so the result is not that of an uninterrupted training"
            )
            return
        mine = of_rank(state.ranks, self._world.rank)
        arrays = mine.arrays
        restore_random_state(mine)
        torch.set_rng_state(torch.from_numpy(arrays[_RANDOM].copy()))
        if _RANDOM_GPU in arrays and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(arrays[_RANDOM_GPU].copy()))
        for name, parameter in self._model.named_parameters():
            if f"{_GRADIENT}{name}" in arrays:
                # In the memory layout of the parameter: in another one, sums over the gradient round differently.
                parameter.grad = torch.empty_like(parameter).copy_(torch.from_numpy(arrays[f"{_GRADIENT}{name}"]))
        self.restore_running(mine)
        if state.inside:
            running = {name.removeprefix(_RUNNING): each for name, each in arrays.items() if name.startswith(_RUNNING)}
            self._running.restore(running)

    def _next_batch(self) -> tuple[Any, Any]:
        began = time.perf_counter()
        batch = next(self._batches, None)
        if batch is None:
            raise FeedError("the batches of a training ended before its last step")
        self._pace.waited(time.perf_counter() - began)
        images, labels = batch
        return on_device(images, self._world.device), on_device(labels, self._world.device)
