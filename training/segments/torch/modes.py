"""Training and evaluation mode of a PyTorch model, module by module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Sets a model to evaluation mode; afterwards each module has the mode that it had, frozen ones among them."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was_training in before.items():
            module.training = was_training


def set_to_training(model: torch.nn.Module) -> None:
    """Sets a model to training mode; modules that `build_model` has set to evaluation in such a model keep that."""
    if not model.training:
        model.train()
