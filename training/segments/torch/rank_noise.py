"""The state of a PyTorch model in training on one rank: random states, statistics, gradients not yet applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..rank_state import RankState, random_state, restore_random_state

if TYPE_CHECKING:
    from ..plain_values import Arrays

_RANDOM, _RANDOM_GPU = "torch_random", "torch_random_gpu"
_GRADIENT, _STATISTIC, _RUNNING = "gradient/", "statistic/", "running/"


def capture(model: torch.nn.Module, running: Mapping[str, Any], *, inside: bool) -> RankState:
    """Takes the state of this rank."""
    arrays: Arrays = {_RANDOM: torch.get_rng_state().numpy()}
    values = random_state(arrays)
    if torch.cuda.is_available():
        arrays[_RANDOM_GPU] = torch.cuda.get_rng_state().numpy()
    if inside:
        arrays |= {f"{_RUNNING}{name}": each for name, each in running.items()}
        arrays |= {f"{_STATISTIC}{name}": _array(each) for name, each in statistics_of(model).items()}
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    arrays |= {f"{_GRADIENT}{name}": _array(each) for name, each in gradients.items()}
    return RankState(values, arrays)


def restore(state: RankState, model: torch.nn.Module) -> None:
    """Restores random states, statistics and gradients of an identically built model."""
    restore_random_state(state)
    torch.set_rng_state(torch.from_numpy(state.arrays[_RANDOM].copy()))
    if _RANDOM_GPU in state.arrays and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.from_numpy(state.arrays[_RANDOM_GPU].copy()))
    for name, parameter in model.named_parameters():
        if f"{_GRADIENT}{name}" in state.arrays:
            # In the memory layout of the parameter: in another one, sums over the gradient round differently.
            parameter.grad = torch.empty_like(parameter).copy_(torch.from_numpy(state.arrays[f"{_GRADIENT}{name}"]))
    restore_statistics(state, model)


def restore_statistics(state: RankState, model: torch.nn.Module) -> None:
    """Restores this rank's statistics of an epoch in progress."""
    for name, buffer in statistics_of(model).items():
        if f"{_STATISTIC}{name}" in state.arrays:  # else the model's file has it
            buffer.copy_(torch.from_numpy(state.arrays[f"{_STATISTIC}{name}"].copy()))


def running_of(state: RankState) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the sums of metrics of an epoch in progress; empty at the end of one."""
    found = {name: each for name, each in state.arrays.items() if name.startswith(_RUNNING)}
    return {name.removeprefix(_RUNNING): each for name, each in found.items()}


def statistics_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Finds floating-point buffers, such as the running means of batch normalization, by name."""
    return {name: each for name, each in model.named_buffers() if each.is_floating_point()}


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = tensor.detach().float().cpu().numpy().copy()
    return found
