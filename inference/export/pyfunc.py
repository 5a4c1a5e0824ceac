"""An MLflow pyfunc around a SavedModel: a table with encoded images in, a table with predictions out."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from ...training.checkpoints.references import ModelRef

# MLflow copies this file into the model and runs it where the model is loaded; it imports nothing of lakelens.
_SERVED = Path(__file__).with_name("served_model.py")
_PACKAGES = ("mlflow", "numpy", "pandas")


def write_pyfunc(savedmodel: Path, folder: Path, model: ModelRef) -> None:
    """Writes a pyfunc whose input is the column `image` with encoded images."""
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import DataType
    from mlflow.types.schema import Array, ColSpec, Schema

    outputs = [
        ColSpec(DataType.integer, "prediction"),
        *([ColSpec(DataType.string, "predicted_name")] if model.class_names else []),
        ColSpec(DataType.float, "probability"),
        ColSpec(Array(DataType.float), "probabilities"),
    ]
    mlflow.pyfunc.save_model(
        str(folder),
        python_model=str(_SERVED),
        artifacts={"savedmodel": str(savedmodel)},
        signature=ModelSignature(Schema([ColSpec(DataType.binary, "image")]), Schema(outputs)),
        pip_requirements=[f"tensorflow=={version('tensorflow')}", *(f"{name}=={version(name)}" for name in _PACKAGES)],
        metadata={"lakelens.digest": model.digest, "lakelens.model": model.uri},
    )
