"""Writes and reads tensors as safetensors files: no pickle, and no code runs when one is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CheckpointError
from .manifests import MODEL_FILES, TORCH

if TYPE_CHECKING:
    import torch

OPTIMIZER_FILE = "optimizer.safetensors"
# Key in a file's header of the values that are not tensors.
_VALUES = "lakelens"


def model_files(model: torch.nn.Module, optimization: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """Gives the files of a model in training for `write_checkpoint`."""
    return {
        MODEL_FILES[TORCH]: lambda path: _save_model(model, path),
        OPTIMIZER_FILE: lambda path: _save_values(optimization, path),
    }


def load_weights(model: torch.nn.Module, path: Path) -> None:
    """Gives a model the weights and buffers of a file."""
    from safetensors.torch import load_model

    try:
        load_model(model, path)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} is of another model than the Trial builds now ({error}); continue with the entry point and the "
            "hyperparameters that it was written with"
        ) from error
    except Exception as error:  # safetensors' own errors have no common base
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Reads the tensors of a file by name."""
    from safetensors.torch import load_file

    try:
        found: dict[str, torch.Tensor] = load_file(path)
        return found
    except Exception as error:  # as above
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


def read_values(path: Path) -> dict[str, Any]:
    """Reads what `model_files` wrote as the optimization."""
    from safetensors import safe_open

    tensors = read_tensors(path)
    with safe_open(path, "pt") as file:
        described = (file.metadata() or {}).get(_VALUES)
    if described is None:
        raise CheckpointError(f"{path} holds no state of an optimizer")
    found: dict[str, Any] = _decoded(json.loads(described), tensors)
    return found


def _save_model(model: torch.nn.Module, path: Path) -> None:
    from safetensors.torch import save_model

    try:
        save_model(model, str(path))
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"the model cannot be saved as safetensors: {error}") from error


def _save_values(values: Mapping[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    described = _encoded(values, tensors, "")
    save_file(tensors, path, {_VALUES: json.dumps(described)})


def _encoded(value: Any, tensors: dict[str, torch.Tensor], name: str) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().contiguous().clone()
        return {"tensor": name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):  # a list of pairs, because state dicts have numbers as keys
        return {"items": [[key, _encoded(item, tensors, f"{name}/{key}")] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_encoded(item, tensors, f"{name}/{number}") for number, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    raise CheckpointError(
        f"the state of the optimizer or scheduler holds {type(value).__name__} at {name.strip('/')!r}, which is stored "
        "neither as a tensor nor as JSON; give numbers, texts, tensors, lists and dicts in its state_dict()"
    )


def _decoded(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "tuple":
        return tuple(_decoded(item, tensors) for item in inner)
    return {key: _decoded(item, tensors) for key, item in inner}
