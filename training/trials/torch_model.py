"""A trained PyTorch model, built by its Trial, as a function of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ...errors import CheckpointError
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.torch_files import load_weights
from ..tasks.registry import task_of
from .context import TrialContext
from .torch_trial import TorchTrial
from .trial import Trial

Images = np.ndarray[Any, Any]


def trained_model(checkpoint: Checkpoint, kind: type[Trial]) -> torch.nn.Module:
    """Builds a checkpoint's model with its Trial, and gives it the checkpoint's weights."""
    if not issubclass(kind, TorchTrial):
        raise CheckpointError(f"{checkpoint.path}: {kind.__qualname__} is not a lakelens.TorchTrial")
    height, width, _ = checkpoint.input_shape
    told = checkpoint.metadata
    context = TrialContext(
        hyperparameters=told.get("hyperparameters"),
        task=task_of(checkpoint),
        image_size=(height, width),
        global_batch_size=int(told.get("global_batch_size", 1)),
        seed=int(told.get("seed", 0)),
    )
    model = kind(context).build_model()
    load_weights(model, checkpoint.model_path)
    return model.eval()


def outputs_of(model: torch.nn.Module) -> Callable[[Images], Any]:
    """Returns a function of images uint8 [rows, height, width, 3] to the model's outputs, as float32 arrays."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device, memory_format=torch.channels_last)

    def run(images: Images) -> Any:
        with torch.inference_mode():
            # A view: the memory stays NHWC, which is channels_last.
            given = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).to(device)
            return _arrays(model(given))

    return run


def _arrays(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _arrays(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(_arrays(value) for value in values)
    return values.float().cpu().numpy()
