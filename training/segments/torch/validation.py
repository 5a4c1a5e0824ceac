"""Measures a PyTorch model on the validation rows: means over the rows of all ranks, from sums on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ....errors import NotFiniteError, TrialError
from ...tasks.task import Task
from .checks import require_saved
from .world import in_evaluation, on_device, without_padding

if TYPE_CHECKING:
    from ...feed.feed import DeltaFeed
    from ...tasks.task import Counts
    from ...trials.torch_trial import TorchTrial
    from ..job import TrainingJob
    from .world import TorchWorld


class MetricSums:
    """Sums of metrics over rows, in float64; they stay on the device until they are read."""

    def __init__(self) -> None:
        self.rows = 0
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, means: Mapping[str, Any], rows: int) -> None:
        """Adds the means of a batch over its rows; none if it has no rows."""
        if rows == 0:
            return
        self.rows += rows
        for name, mean in means.items():
            total = torch.as_tensor(mean, dtype=torch.float64) * rows
            self._sums[name] = self._sums[name] + total if name in self._sums else total

    def over_ranks(self, world: TorchWorld) -> dict[str, float]:
        """Returns the means over the rows of all ranks, the same on each; every rank calls it."""
        names = sorted(
            {name for found in world.allgather_object(list(self._sums), name="lakelens.names") for name in found}
        )
        mine = np.array([self.rows, *(float(self._sums.get(name, 0.0)) for name in names)], np.float64)
        ((rows, *totals),) = world.sums([mine], name="lakelens.sums")
        return {name: float(total / rows) for name, total in zip(names, totals, strict=True)}

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the sums as arrays by name."""
        return {"rows": np.array(self.rows), **{f"sum/{name}": each.cpu().numpy() for name, each in self._sums.items()}}

    def restore(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Restores what `arrays` gave."""
        self.rows = int(arrays["rows"])
        self._sums = {
            name.removeprefix("sum/"): torch.from_numpy(np.array(each))
            for name, each in arrays.items()
            if name.startswith("sum/")
        }


# Validation images of one rank are kept decoded up to here; more are decoded again at each validation.
_CACHE_LIMIT_BYTES = 256 << 20
# Images of a picture.
_SHOWN = 8


class Validation:
    """Measures a Trial's model on the validation rows of all ranks."""

    def __init__(self, trial: TorchTrial, job: TrainingJob, feed: DeltaFeed, world: TorchWorld) -> None:
        self._trial, self._job, self._feed, self._world = trial, job, feed, world
        self._metrics = {name: self._over_ranks(metric) for name, metric in trial.build_metrics().items()}
        self.picture: bytes | None = None  # On rank 0 the task's picture of the first rows of the last `count`
        self._kept: list[tuple[torch.Tensor, Any]] | None = None

    def measure(self, model: torch.nn.Module, described: Mapping[str, Any]) -> dict[str, float]:
        """Returns each metric over the rows of all ranks, as `val_...`."""
        if not self._metrics and type(self._trial.context.task).measure is Task.measure:
            return {}  # the task's metrics come from its counts alone
        sums = MetricSums()
        for metric in self._metrics.values():
            metric.reset()
        failure: TrialError | None = None
        try:
            for images, outputs, labels in self._outputs(model):
                for metric in self._metrics.values():
                    metric.update(outputs, labels)
                sums.add(self._trial.context.task.measure(_arrays(outputs), _arrays(labels), described), len(images))
        except TrialError as error:
            failure = error
        for each in self._world.allgather_object(failure, name="lakelens.measured"):
            if each is not None:
                raise each
        found = sums.over_ranks(self._world) | {name: _number(name, each) for name, each in self._metrics.items()}
        return {f"val_{name}": value for name, value in found.items()}

    def _over_ranks(self, metric: Any) -> Any:
        """Lets a torchmetrics metric, and those that it is made of, gather their states through the ranks' own link."""
        for part in metric.to(self._world.device).modules():
            part.dist_sync_fn = self._gathered
        return metric

    def _gathered(self, state: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        """Gathers a state of all ranks; torchmetrics' own gathering ends a rank without rows, whose state is empty."""
        found = self._world.allgather_object(state.cpu(), name="lakelens.metric")
        return [each.to(state.device) for each in found if each.numel()] or [state]

    def count(self, model: torch.nn.Module, described: Mapping[str, Any]) -> Counts:
        """Counts for the task's evaluation, on the rows of this rank."""
        task = self._trial.context.task
        parts: list[Counts] = []
        for images, outputs, labels in self._outputs(model):
            given, true = _arrays(outputs), _arrays(labels)
            if not all(np.isfinite(part).all() for part in (given.values() if isinstance(given, dict) else [given])):
                raise NotFiniteError("output is NaN or infinite for validation rows")
            if not parts and self._world.rank == 0:
                shown = images[:_SHOWN].permute(0, 2, 3, 1).float().cpu().numpy()
                self.picture = task.picture(shown, _first(given), _first(true), described)
            parts.append(task.count(given, true, described))
        return task.joined(parts)

    def _outputs(self, model: torch.nn.Module) -> Iterator[tuple[torch.Tensor, Any, Any]]:
        """Yields images, outputs and labels of each batch with rows."""
        require_saved(self._trial, model)  # a step may have made an average
        with in_evaluation(model):
            for images, labels in self._batches():
                with torch.inference_mode():
                    outputs = self._trial.validation_step(model, (images, labels))
                yield images, outputs, labels

    def _batches(self) -> Iterator[tuple[torch.Tensor, Any]]:
        if self._kept is not None:
            yield from self._kept
            return
        job, world = self._job, self._world
        feed = self._feed.with_equal_weights().as_torch(
            job.config.global_batch_size,
            world.rank,
            world.size,
            image_size=job.config.image_size,
            **{**self._trial.context.task.feed_options, **job.config.data.dataset_options},
        )
        height, width = job.config.image_size
        kept: list[tuple[torch.Tensor, Any]] = []
        keeps = self._feed.rows // world.size * height * width * 3 <= _CACHE_LIMIT_BYTES
        for batch in feed:
            images, labels = without_padding(*batch)
            if len(images):
                found = on_device(images, world.device), on_device(labels, world.device)
                if keeps:
                    kept.append(found)
                yield found
        if keeps:
            self._kept = kept


def _number(name: str, metric: Any) -> float:
    value = metric.compute()
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        found = f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise TrialError(f"build_metrics: {name!r} computes {found}; a metric is one number") from error


def _arrays(values: Any) -> Any:
    """Returns tensors, and dicts of them, as arrays."""
    if isinstance(values, Mapping):
        return {name: _arrays(value) for name, value in values.items()}
    return values.float().cpu().numpy() if values.is_floating_point() else values.cpu().numpy()


def _first(values: Any) -> Any:
    """Returns the rows that a picture shows."""
    return {name: part[:_SHOWN] for name, part in values.items()} if isinstance(values, dict) else values[:_SHOWN]
