"""Copies weights from another model: for Keras' layers, and PyTorch's tensors, with the same name and shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import CheckpointError
from ...results import some_of
from .checkpoint import open_checkpoint
from .torch_files import read_tensors

if TYPE_CHECKING:
    import keras
    import torch

_NAMED = 8


@dataclass(frozen=True)
class WarmStart:
    """The model whose weights a training starts with."""

    uri: str  # As the user named it
    folder: Path  # Its checkpoint, where rank 0 reads it


@dataclass(frozen=True)
class TakenWeights:
    """The layers that a model has copied from another one."""

    fitting: list[str]  # Layers that have its weights
    missing: list[str]  # Layers without its weights, with the reason
    unused: list[str]  # Layers of the other model that the model lacks

    def __str__(self) -> str:
        parts = [f"{len(self.fitting)} of {len(self.fitting) + len(self.missing)} layers take its weights"]
        if self.missing:
            parts.append(f"these start from scratch: {listed(self.missing)}")
        if self.unused:
            parts.append(f"the model lacks {listed(self.unused)}")
        return "; ".join(parts)


def take_weights(model: keras.Model, start: WarmStart) -> TakenWeights:
    """Copies the weights of a checkpoint's model into layers with the same name and shapes, without optimizer state."""
    import keras

    other = open_checkpoint(start.folder).load_model(custom_objects=keras.saving.get_custom_objects())
    theirs = dict(_weighted_layers(other))
    fitting, missing = [], []
    mine = dict(_weighted_layers(model))
    for name, layer in mine.items():
        if name not in theirs:
            missing.append(f"{name} (it has no such layer)")
            continue
        here, there = ([tuple(weight.shape) for weight in each.weights] for each in (layer, theirs[name]))
        if here != there:
            missing.append(f"{name} (shapes {there} there, {here} here)")
            continue
        for weight, value in zip(layer.weights, theirs[name].weights, strict=True):
            weight.assign(value.numpy())
        fitting.append(name)
    if not fitting:
        raise CheckpointError(
            f"warm_start {start.uri}: none of its layers ({listed(list(theirs))}) has the name and shapes of one of "
            f"the model that the Trial builds ({listed(list(mine))})"
        )
    return TakenWeights(fitting, missing, [name for name in theirs if name not in mine])


def take_tensors(model: torch.nn.Module, start: WarmStart) -> TakenWeights:
    """Copies the tensors of a checkpoint that have the name and shape of one of the model, without optimizer state."""
    theirs, mine = read_tensors(open_checkpoint(start.folder).model_path), model.state_dict()
    missing = [f"{name} (it has no such tensor)" for name in mine if name not in theirs]
    fitting = [name for name in mine if name in theirs and theirs[name].shape == mine[name].shape]
    missing += [
        f"{name} (shapes {tuple(theirs[name].shape)} there, {tuple(mine[name].shape)} here)"
        for name in mine
        if name in theirs and name not in fitting
    ]
    if not fitting:
        raise CheckpointError(
            f"warm_start {start.uri}: none of its tensors ({listed(list(theirs))}) has the name and shape of one of "
            f"the model that the Trial builds ({listed(list(mine))})"
        )
    model.load_state_dict({name: theirs[name] for name in fitting}, strict=False)
    return TakenWeights(fitting, missing, [name for name in theirs if name not in mine])


def _weighted_layers(model: keras.Model, prefix: str = "") -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yields the layers that have weights, those of models within it by the path to them."""
    import keras

    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _weighted_layers(layer, f"{prefix}{layer.name}/")
        elif layer.weights:
            yield f"{prefix}{layer.name}", layer


def listed(names: list[str]) -> str:
    """Lists some names, and how many there are besides."""
    return some_of(names, _NAMED) or "none"
