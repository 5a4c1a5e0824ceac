"""Writes the model of a PyTorch checkpoint for MLflow's `pyfunc`: its weights, and the code of its Trial.

MLflow's `pytorch` flavor pickles the whole module; here the Trial builds the module, and no pickle is read.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints.checkpoint import list_checkpoints, open_checkpoint, state_files, write_checkpoint
from ..checkpoints.manifests import ENTRYPOINT_KEY
from ..tasks.registry import task_of
from ..trials.entrypoint import FILE_MODULE_PREFIX, class_of
from .framework_model import FrameworkModel

_DATA, _NAME = "data", "model"


def torch_model(source: Path, folder: Path, code: Mapping[str, bytes], *, makes_probabilities: bool) -> FrameworkModel:
    """Writes a checkpoint's model without its optimizer."""
    checkpoint = open_checkpoint(source.parent)
    files = {source.name: lambda path: shutil.copyfile(source, path), **state_files({}, {})}
    write_checkpoint(folder / _DATA, files=files, metadata=checkpoint.metadata, name=_NAME)
    module, _ = class_of(str(checkpoint.metadata[ENTRYPOINT_KEY]))
    original = f"{module.removeprefix(FILE_MODULE_PREFIX)}.py"
    renamed = {f"{module}.py": code[original]} if module.startswith(FILE_MODULE_PREFIX) and original in code else {}
    is_own = module.split(".")[0] == "lakelens"
    return FrameworkModel(
        name="lakelens",
        flavor={"data": _DATA},
        loader_module=__name__,
        code={} if is_own else {**code, **renamed},
        requirements=("torch", "safetensors", "lakelens"),
        input_type="uint8",
        probabilities=makes_probabilities or None,
    )


class _Model:
    """What MLflow's `pyfunc` loads."""

    def __init__(self, folder: Path) -> None:
        from ..trials.torch_model import outputs_of, trained_model

        (checkpoint,) = list_checkpoints(folder / _DATA)
        module, name = class_of(str(checkpoint.metadata[ENTRYPOINT_KEY]))
        kind = getattr(importlib.import_module(module), name)
        self._task, self._described = task_of(checkpoint), checkpoint.metadata.get("task", {})
        self._outputs = outputs_of(trained_model(checkpoint, kind))

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> np.ndarray[Any, Any]:
        """Returns the task's answers for images uint8 [rows, height, width, 3]."""
        outputs = self._outputs(np.asarray(model_input, np.uint8))
        found: np.ndarray[Any, Any] = self._task.answers(outputs, self._described)
        return found


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> _Model:
    """Loads the model; MLflow calls it with the model's folder."""
    return _Model(Path(path))
