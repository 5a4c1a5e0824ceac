"""The Trial of a PyTorch model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..checkpoints.manifests import TORCH
from .trial import Trial

if TYPE_CHECKING:
    import torch

    Batch = tuple[torch.Tensor, Any]


class TorchTrial(Trial, ABC):
    """One way to train a PyTorch model on the images of a table.

    A subclass defines the model, its optimizer and a training step; everything else has a default. The job calls it
    once per rank and adds the distribution: gradients averaged over the rows of all ranks, metrics over these rows,
    checkpoints from rank 0. Batches are on the rank's device.

    Attributes:
        scheduler_interval: Whether the scheduler steps after each `epoch` or after each update of the weights (`step`).
        stop_training: Set it to end the training after the step.

    Examples:
        >>> class Linear(lakelens.TorchTrial):
        ...     def build_model(self):
        ...         from torch import nn
        ...         class OfPixels(nn.Linear):
        ...             def forward(self, images):
        ...                 return super().forward(images.flatten(1).float() / 255)
        ...         height, width = self.context.image_size
        ...         return OfPixels(3 * height * width, self.context.num_classes)
        ...
        ...     def build_optimizer(self, model):
        ...         import torch
        ...         return torch.optim.SGD(model.parameters(), self.context.get_hparam("learning_rate"))
        ...
        ...     def training_step(self, model, batch):
        ...         from torch.nn.functional import cross_entropy
        ...         images, labels = batch
        ...         return cross_entropy(model(images), labels)
    """

    framework: ClassVar[str] = TORCH
    scheduler_interval: ClassVar[Literal["epoch", "step"]] = "epoch"
    stop_training = False

    @abstractmethod
    def build_model(self) -> torch.nn.Module:
        """Builds the model; raises `InvalidHyperparameters` for an invalid combination of hyperparameters.

        It takes images uint8 [rows, 3, height, width] with pixels from 0 to 255 (make scaling a part of the model, so
        that scoring needs the model alone) and returns a logit or a probability per class [rows, classes]. Which of the
        two is read from its last operation, else from the loss of `training_step`; set `outputs` if neither shows it.
        """

    @abstractmethod
    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Builds the optimizer of the model's parameters."""

    @abstractmethod
    def training_step(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor | Mapping[str, torch.Tensor]:
        """Computes the loss of a batch.

        The job calls `backward`, and updates the weights. Call `model`, not a module that the Trial has kept.

        Args:
            model: The model.
            batch: Images uint8 [rows, 3, height, width] and labels int64 [rows]: the rows of this rank, without
                padding. A rank without rows in a step does not call it.

        Returns:
            The loss, a mean over the rows; or a dict of `loss` and other means over the rows, which become metrics.
        """

    def validation_step(self, model: torch.nn.Module, batch: Batch) -> Any:
        """Returns the model's outputs for a batch, from which the task computes its metrics."""
        return model(batch[0])

    def build_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        """Builds the scheduler of the learning rate, one of torch.optim.lr_scheduler; None leaves the rate alone.

        A `ReduceLROnPlateau` gets the metric that decides, after each epoch with a validation; its mode is that of the
        metric.
        """
        return None

    def build_metrics(self) -> Mapping[str, Any]:
        """Returns more validation metrics by name: objects with torchmetrics' `update(outputs, labels)`, `compute()`.

        torchmetrics' own sum over the ranks.
        """
        return {}

    def preprocess(self, images: torch.Tensor, labels: Any) -> tuple[torch.Tensor, Any]:
        """Augments the rows of a training batch; images may have another type afterwards.

        Validation and inference do not use it: make transformations that they need a part of the model.
        """
        return images, labels

    def build_training_dataset(self) -> Iterable[Any] | None:
        """Returns the batches (images, labels) of this rank; None uses the job's feed, as most Trials do.

        Each iteration is an epoch. Every rank must give `context.training_feed.steps_per_epoch(global_batch_size,
        size)` batches; one of a rank without rows is empty.
        """
        return None
