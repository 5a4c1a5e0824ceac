"""Writes a checkpoint as an MLflow model: a folder that MLflow's own `load_model` and `spark_udf` can load.

`mlflow.pyfunc.log_model` would write to the process's store, and load TensorFlow in the driver to try the example.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ...stores.data_files import write_files
from ...tracking.logged_models import CHECKPOINT_RUN_KEY, ModelFolder
from ...tracking.runs import DIGEST_TAG, quiet
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.manifests import KERAS, TORCH
from ..tasks.registry import task_of
from ..trials.entrypoint import EntryPoint
from .code_record import code_of
from .framework_model import FrameworkModel
from .keras_model import keras_model
from .torch_model import torch_model

# The writer of each backend's models.
_FRAMEWORKS: Mapping[str, Callable[..., FrameworkModel]] = {KERAS: keras_model, TORCH: torch_model}


@contextlib.contextmanager
def mlflow_model_of(checkpoint: Checkpoint, entry: EntryPoint) -> Iterator[ModelFolder]:
    """Writes a checkpoint as an MLflow model into a folder that exists until the block ends."""
    with tempfile.TemporaryDirectory(prefix="lakelens-model-") as place:
        run_id = str(checkpoint.metadata["run_id"])
        yield write_mlflow_model(checkpoint, Path(place, "model"), run_id=run_id, code=code_of(entry))


def write_mlflow_model(
    checkpoint: Checkpoint, folder: Path, *, run_id: str, code: Mapping[str, bytes] | None = None
) -> ModelFolder:
    """Writes a checkpoint as an MLflow model."""
    import mlflow.pyfunc
    from mlflow.models import Model, ModelSignature

    task = task_of(checkpoint)
    with tempfile.TemporaryDirectory(prefix="lakelens-model-") as place, quiet("mlflow.pyfunc"):
        files, imported = Path(place, "files"), Path(place, "code")
        files.mkdir()
        made = _FRAMEWORKS[checkpoint.backend](
            checkpoint.model_path, files, code or {}, makes_probabilities=task.makes_probabilities
        )
        # If the layers do not show what the values are, the checkpoint may.
        recorded = task.gives_probabilities(checkpoint.metadata.get("task", {}))
        described = Model(run_id=run_id)
        described.add_flavor(made.name, **made.flavor)
        write_files(imported, made.code)
        image = {"dtype": made.input_type, "shape": [-1, *checkpoint.input_shape]}
        outputs = None if task.recorded_outputs is None else json.dumps(list(task.recorded_outputs))
        inputs = json.dumps([{"type": "tensor", "tensor-spec": image}])
        mlflow.pyfunc.save_model(
            str(folder),
            loader_module=made.loader_module,
            code_paths=[str(path) for path in sorted(imported.iterdir())] if made.code else None,
            mlflow_model=described,
            signature=ModelSignature.from_dict({"inputs": inputs, "outputs": outputs}),
            input_example=np.full((1, *checkpoint.input_shape), 127, made.input_type),  # a grey image
            # Without them MLflow would load the model to find them, in 20 s.
            pip_requirements=_pinned("mlflow", "numpy", "pandas", *made.requirements),
            metadata={
                DIGEST_TAG: checkpoint.digest,
                CHECKPOINT_RUN_KEY: run_id,
                "lakelens.class_names": checkpoint.class_names,
                # MLflow's users must know if the values are, or may be, logits.
                "lakelens.probabilities": recorded if made.probabilities is None else made.probabilities,
            },
        )
        # `data_path` would put them where MLflow's `keras` flavor does not look.
        shutil.copytree(files, folder, dirs_exist_ok=True)
    return ModelFolder(folder, checkpoint.digest)


def _pinned(*names: str) -> list[str]:
    """Returns the requirements with their installed versions; those that are not installed are left out."""
    found = []
    for name in names:
        for distribution in (name, f"{name}-cpu"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found.append(f"{name}=={importlib.metadata.version(distribution)}")
                break
    return found
