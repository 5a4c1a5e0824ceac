"""Rules of learning rates: scaled by ranks, raised over the first steps, then the scheduler's."""

from __future__ import annotations

from typing import Any

import pytest

from lakelens.errors import TrialError
from lakelens.training.configuration.sections import Optimizations
from lakelens.training.tasks.classification import Classification
from lakelens.training.trials.context import TrialContext

pytestmark = pytest.mark.torch
STEPS = 6


def rates(rules: dict[str, Any], ranks: int = 1, build: Any = None, interval: Any = "epoch") -> Any:
    """The learning rate of an optimizer with a rate of 1, under rules and with the scheduler that `build` makes."""
    import torch

    from lakelens.training.segments.torch.built_trial import LearningRate
    from lakelens.training.trials.torch_small_cnn import TorchSmallCnn

    class Trial(TorchSmallCnn):
        scheduler_interval = interval

        def build_scheduler(self, optimizer):
            return None if build is None else build(optimizer)

    context = TrialContext(task=Classification(["a", "b"]), image_size=(8, 8))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
    found = LearningRate(Trial(context), optimizer, Optimizations(**rules), ranks, STEPS)
    found.group = optimizer.param_groups[0]
    return found


def rate_of(rate: Any) -> float:
    return float(rate.group["lr"])


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("sqrt", 2.0), ("linear", 4.0)])
def test_a_rate_is_scaled_by_the_ranks_and_reached_at_the_end_of_the_warm_up(scaling, factor):
    rate = rates({"learning_rate_scaling": scaling, "warmup_epochs": 0.5}, ranks=4)
    found = []
    for step in range(5):
        rate.set_before(step)
        found.append(rate_of(rate))
    assert found == pytest.approx([factor / 3, 2 * factor / 3, factor, factor, factor])
    assert "reached after 3 steps" in rate.described


def test_a_warm_up_under_a_scheduler_is_refused():
    from torch.optim.lr_scheduler import StepLR

    with pytest.raises(TrialError, match="build_scheduler returned StepLR, which sets it too; put LinearLR into"):
        rates({"warmup_epochs": 1}, build=lambda optimizer: StepLR(optimizer, 1))


def test_a_scheduler_steps_after_epochs_or_after_updates_and_on_a_plateau_by_the_metric():
    from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

    by_epoch = rates({}, build=lambda optimizer: StepLR(optimizer, 1, 0.5))
    by_update = rates({}, build=lambda optimizer: StepLR(optimizer, 1, 0.5), interval="step")
    plateau = rates({}, build=lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.5, patience=0))
    for each in (by_epoch, by_update, plateau):
        each.updated()
        each.updated()
        each.ended_epoch(1.0)
    assert [rate_of(each) for each in (by_epoch, by_update, plateau)] == [0.5, 0.25, 1.0]
    plateau.ended_epoch(None)
    assert rate_of(plateau) == 1.0
    plateau.ended_epoch(2.0)
    assert rate_of(plateau) == 0.5


def test_a_training_that_is_continued_to_a_larger_length_follows_its_curve():
    """The rate of a training of 2 epochs is 0 at its end; one of 4 epochs is at half of its own curve there."""
    from torch.optim.lr_scheduler import LambdaLR

    short, long = (
        rates({}, build=lambda optimizer, most=most: LambdaLR(optimizer, lambda epoch: 1 - epoch / most))
        for most in (2, 4)
    )
    short.ended_epoch(None)
    short.ended_epoch(None)
    assert rate_of(short) == 0.0
    long.restore(short.scheduler.state_dict())
    assert rate_of(long) == 0.5
    long.ended_epoch(None)
    assert rate_of(long) == 0.25
