"""What the framework of a model adds to its MLflow model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FrameworkModel:
    """The framework's part of an MLflow model.

    Attributes:
        name: MLflow's flavor.
        flavor: What its loader reads in the `MLmodel` file.
        loader_module: Module with `_load_pyfunc`: MLflow's, or one of `code`.
        code: Files that `mlflow.pyfunc.load_model` makes importable, by relative path.
        requirements: Distributions that loading needs in addition to MLflow, NumPy and pandas.
        input_type: NumPy's name of the type of the images that the model takes.
        probabilities: Whether its values are probabilities; None if the layers do not show it.
    """

    name: str
    flavor: Mapping[str, Any]
    loader_module: str
    code: Mapping[str, bytes]
    requirements: tuple[str, ...]
    input_type: str
    probabilities: bool | None
