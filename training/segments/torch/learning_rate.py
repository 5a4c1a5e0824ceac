"""The learning rate of a training: scaled by the number of ranks, raised over its first steps, then the scheduler's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from ....errors import TrialError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...configuration.sections import Optimizations
    from ...trials.torch_trial import TorchTrial


class LearningRate:
    """The rates of an optimizer's parameter groups.

    Attributes:
        scheduler: The Trial's scheduler; None if it has none.
        described: What changes the rates, for the driver's log; "" if nothing does.
    """

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
