"""Layers of the ready-made PyTorch Trials."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Pixels(nn.Module):
    """Turns images uint8 [rows, 3, height, width] into floats: from 0 to 1, then less a mean and over a deviation."""

    def __init__(self, mean: Sequence[float] = (0.0, 0.0, 0.0), deviation: Sequence[float] = (1.0, 1.0, 1.0)) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(1, -1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).reshape(1, -1, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Converts the images."""
        return (images.float() / 255 - self.mean) / self.deviation
