"""Writes a checkpoint as an MLflow model: a folder that MLflow's own `load_model` and `spark_udf` can load.

The files follow MLflow's `keras` flavor, but are not written by its `save_model`: it needs a loaded model, and so
TensorFlow, in the driver, and `mlflow.models` alone takes seconds to import.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from ...tracking.logged_models import CHECKPOINT_RUN_KEY, ModelFolder
from ...tracking.runs import DIGEST_TAG
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.keras_files import UserObject
from ..tasks.registry import task_of
from ..trials.entrypoint import FILE_MODULE_PREFIX, EntryPoint
from .code_record import code_of
from .inference_archive import InferenceArchive, write_inference_archive

_DATA, _CODE, _LOADER = "data", "code", "load_user_layers"
# Requirements for loading the model. They are given, because MLflow would load the model to find them, in 20 s.
_REQUIRED = ("mlflow", "keras", "tensorflow", "numpy", "pandas")
_LOADER_TEXT = '''"""Registers the layers that the model holds and Keras has not, then loads it."""

import importlib

import keras

OBJECTS = {objects}
for registered_name, module, name in OBJECTS:
    # Importing the module may register it already.
    value = getattr(importlib.import_module(module), name)
    keras.saving.get_custom_objects().setdefault(registered_name, value)

from mlflow.keras import _load_pyfunc  # noqa: E402, F401
'''


@contextlib.contextmanager
def mlflow_model_of(checkpoint: Checkpoint, entry: EntryPoint) -> Iterator[ModelFolder]:
    """Writes a checkpoint as an MLflow model into a folder that exists until the block ends.

    Args:
        checkpoint: The checkpoint, with the run that trained it in its metadata.
        entry: The Trial, whose code is added if the model has layers of the user.
    """
    with tempfile.TemporaryDirectory(prefix="lakelens-model-") as place:
        run_id = str(checkpoint.metadata["run_id"])
        yield write_mlflow_model(checkpoint, Path(place, "model"), run_id=run_id, code=code_of(entry))


def write_mlflow_model(
    checkpoint: Checkpoint, folder: Path, *, run_id: str, code: Mapping[str, bytes] | None = None
) -> ModelFolder:
    """Writes a checkpoint as an MLflow model.

    Args:
        checkpoint: The checkpoint.
        folder: An empty folder, or one that does not exist.
        run_id: The run that trained it.
        code: The user's files that may define layers, by relative path.

    Raises:
        CheckpointError: If the checkpoint's model is not a `.keras` file, or its task is unknown.
        OSError: If the disk refuses.
    """
    (folder / _DATA).mkdir(parents=True)
    task = task_of(checkpoint)
    archive = write_inference_archive(
        checkpoint.model_path, folder / _DATA / "model.keras", makes_probabilities=task.makes_probabilities
    )
    # If the layers do not show what the values are, the checkpoint may.
    recorded = task.gives_probabilities(checkpoint.metadata.get("task", {}))
    probabilities = recorded if archive.probabilities is None else archive.probabilities
    _write(folder / _DATA / "keras_module.txt", "keras")
    shape = list(checkpoint.input_shape)
    _write_example(folder, archive.input_type, shape)
    _write_environment(folder, archive)
    pyfunc: dict[str, Any] = {
        "loader_module": "mlflow.keras",
        "python_version": platform.python_version(),
        "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
    }
    if archive.user_objects:
        _write_code(folder / _CODE, archive.user_objects, code or {})
        pyfunc |= {"loader_module": _LOADER, "code": _CODE}
    names = checkpoint.class_names
    metadata = {
        DIGEST_TAG: checkpoint.digest,
        CHECKPOINT_RUN_KEY: run_id,
        "lakelens.class_names": names,
        # MLflow's users must know if the values are, or may be, logits.
        "lakelens.probabilities": probabilities,
    }
    description = {
        "flavors": {
            "keras": {
                "data": _DATA,
                "keras_backend": "tensorflow",
                "keras_version": archive.keras_version,
                "save_exported_model": False,
            },
            "python_function": pyfunc,
        },
        "metadata": metadata,
        "mlflow_version": importlib.metadata.version("mlflow"),
        "model_uuid": uuid.uuid4().hex,
        "run_id": run_id,
        "saved_input_example_info": {
            "artifact_path": "input_example.json",
            "format": "tf-serving",
            "serving_input_path": "serving_input_example.json",
            "type": "ndarray",
        },
        "signature": {
            "inputs": json.dumps(
                [{"type": "tensor", "tensor-spec": {"dtype": archive.input_type, "shape": [-1, *shape]}}]
            ),
            "outputs": None if task.recorded_outputs is None else json.dumps(list(task.recorded_outputs)),
            "params": None,
        },
        "utc_time_created": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f"),
    }
    return ModelFolder(folder, description, checkpoint.digest)


def _write_example(folder: Path, kind: str, shape: list[int]) -> None:
    """Writes one grey image as the example of the model's input."""
    image = np.full([1, *shape], 127 if kind == "uint8" else 127.0).tolist()
    _write(folder / "input_example.json", json.dumps(image))
    _write(folder / "serving_input_example.json", json.dumps({"inputs": image}))


def _write_environment(folder: Path, archive: InferenceArchive) -> None:
    required = [*_REQUIRED, *(["lakelens"] if any(_is_own(entry) for entry in archive.user_objects) else [])]
    pinned = [f"{name}=={version}" for name in required if (version := _version(name)) is not None]
    _write(folder / "requirements.txt", "\n".join(pinned))
    python = platform.python_version()
    pip = ["pip", "setuptools", "wheel"]
    lines = [f"python: {python}", "build_dependencies:", *(f"- {name}" for name in pip), "dependencies:"]
    _write(folder / "python_env.yaml", "\n".join([*lines, "- -r requirements.txt", ""]))
    conda = ["channels:", "- conda-forge", "dependencies:", f"- python={python}", "- pip", "- pip:"]
    _write(folder / "conda.yaml", "\n".join([*conda, *(f"  - {entry}" for entry in pinned), "name: mlflow-env", ""]))


def _version(name: str) -> str | None:
    for distribution in (name, f"{name}-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _is_own(entry: UserObject) -> bool:
    """Returns whether the object's module needs lakelens: one of lakelens itself, or an entry point's file."""
    return entry.module.split(".")[0].startswith("lakelens")


def _write_code(folder: Path, objects: tuple[UserObject, ...], code: Mapping[str, bytes]) -> None:
    folder.mkdir()
    for name, content in code.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    listed = [(entry.registered_name, entry.module, entry.name) for entry in objects]
    _write(folder / f"{_LOADER}.py", _LOADER_TEXT.replace("{objects}", repr(listed)))
    for entry in objects:
        # The name of an entry point's module while it trains.
        original = f"{entry.module.removeprefix(FILE_MODULE_PREFIX)}.py"
        if entry.module.startswith(FILE_MODULE_PREFIX) and original in code:
            (folder / f"{entry.module}.py").write_bytes(code[original])


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
