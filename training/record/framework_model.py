"""What the framework of a model adds to its MLflow model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FrameworkModel:
    """The framework's part of an MLflow model."""

    name: str  # MLflow's flavor
    flavor: Mapping[str, Any]  # What its loader reads in the `MLmodel` file
    loader_module: str  # Module with `_load_pyfunc`: MLflow's, or one of `code`
    code: Mapping[str, bytes]  # Files that `mlflow.pyfunc.load_model` makes importable, by relative path
    requirements: tuple[str, ...]  # Distributions that loading needs in addition to MLflow, NumPy and pandas
    input_type: str  # NumPy's name of the type of the images that the model takes
    probabilities: bool | None  # Whether its values are probabilities; None if the layers do not show it
