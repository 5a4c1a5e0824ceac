"""A PyTorch Trial for the checks of `gpu_rules`: small, and with everything that draws noise or keeps statistics."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lakelens
from lakelens.training.trials.torch_layers import Pixels


class Probe(lakelens.TorchTrial):
    """Convolutions with batch normalization and dropout; notes where and in which type it computes.

    `PROBE_NOTES` names the file for the notes of the first step, `PROBE_KILL` a file: the rank dies in its eighth step
    unless that exists.
    """

    def build_model(self) -> nn.Module:
        """Builds the network."""
        self._steps = 0
        return nn.Sequential(
            Pixels(),
            nn.Conv2d(3, 16, 3, stride=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(32, self.context.num_classes),
        )

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Builds AdamW."""
        return torch.optim.AdamW(model.parameters(), 0.003)

    def preprocess(self, images: torch.Tensor, labels: Any) -> tuple[torch.Tensor, Any]:
        """Mirrors half of the batches."""
        return (images.flip(3) if bool(torch.rand(()) < 0.5) else images), labels

    def training_step(self, model: nn.Module, batch: tuple[torch.Tensor, Any]) -> torch.Tensor:
        """Computes the cross-entropy."""
        images, labels = batch
        self._steps += 1
        kill = os.environ.get("PROBE_KILL")
        if kill is not None and self._steps == 8 and not Path(kill).exists():
            Path(kill).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        answers = model(images)
        notes = os.environ.get("PROBE_NOTES")
        if notes is not None and self._steps == 1:
            kinds = {type(layer).__name__ for layer in model.modules()}
            weights = {str(each.dtype) for each in model.parameters()}
            Path(notes).write_text(f"{images.device.type} {answers.dtype} {sorted(weights)} {sorted(kinds)}")
        return nn.functional.cross_entropy(answers, labels)
