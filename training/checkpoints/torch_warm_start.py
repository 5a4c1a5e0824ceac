"""Copies tensors from another PyTorch model, for parameters and buffers with the same name and shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import CheckpointError
from .checkpoint import open_checkpoint
from .torch_files import read_tensors
from .warm_start import TakenWeights, WarmStart, listed

if TYPE_CHECKING:
    import torch


def take_weights(model: torch.nn.Module, start: WarmStart) -> TakenWeights:
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
