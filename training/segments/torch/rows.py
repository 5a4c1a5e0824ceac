"""Rows of a batch: without padding, and on the rank's device."""

from __future__ import annotations

from typing import Any

import torch


def without_padding(
    images: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the rows of positive weight."""
    real = weights > 0
    if bool(real.all()):
        return images, labels
    return images[real], labels[real]


def on_device(value: Any, device: torch.device) -> Any:
    """Moves tensors, and dicts of them, to a device, without waiting for what a GPU computes meanwhile."""
    if isinstance(value, dict):
        return {name: on_device(part, device) for name, part in value.items()}
    if device.type == "cuda" and value.device.type == "cpu":
        if 0 in value.stride():  # of `expand`: rows that share their memory cannot be pinned
            value = value.clone(memory_format=torch.contiguous_format)
        value = value.pin_memory()  # a copy from other memory waits for the GPU
    return value.to(device, non_blocking=True)
