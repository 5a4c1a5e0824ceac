"""lakelens turns a folder of images into a scored Delta table, on open-source Spark.

The public names are imported on first use: `import lakelens` needs neither a JVM nor TensorFlow.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InvalidHyperparameters, LakelensError

if TYPE_CHECKING:
    from . import search as search
    from .etl.image_table import ImageTable
    from .etl.images.recipe import Limits, Recipe
    from .inference.evaluation.evaluate import evaluate
    from .inference.export.export import export_model
    from .inference.scoring.score import score
    from .inference.scoring.stream import score_stream
    from .inference.udf import predict_udf
    from .spark.session import spark_session
    from .training.configuration.experiment import ExperimentConfig
    from .training.experiment.train import train
    from .training.feed.converter import decode_images, make_delta_converter
    from .training.feed.feed import DeltaFeed
    from .training.runner.runner import HorovodRunner
    from .training.trials.keras_trial import KerasTrial
    from .training.trials.torch_trial import TorchTrial
    from .training.trials.trial import Trial

__version__ = "0.1.0"

__all__ = [
    "DeltaFeed",
    "ExperimentConfig",
    "HorovodRunner",
    "ImageTable",
    "InvalidHyperparameters",
    "KerasTrial",
    "LakelensError",
    "Limits",
    "Recipe",
    "TorchTrial",
    "Trial",
    "__version__",
    "decode_images",
    "evaluate",
    "export_model",
    "make_delta_converter",
    "predict_udf",
    "score",
    "score_stream",
    "spark_session",
    "train",
]

_HOME_OF = {
    "DeltaFeed": ".training.feed.feed",
    "ExperimentConfig": ".training.configuration.experiment",
    "HorovodRunner": ".training.runner.runner",
    "ImageTable": ".etl.image_table",
    "KerasTrial": ".training.trials.keras_trial",
    "evaluate": ".inference.evaluation.evaluate",
    "decode_images": ".training.feed.converter",
    "make_delta_converter": ".training.feed.converter",
    "Limits": ".etl.images.recipe",
    "Recipe": ".etl.images.recipe",
    "TorchTrial": ".training.trials.torch_trial",
    "Trial": ".training.trials.trial",
    "predict_udf": ".inference.udf",
    "export_model": ".inference.export.export",
    "score": ".inference.scoring.score",
    "score_stream": ".inference.scoring.stream",
    "spark_session": ".spark.session",
    "train": ".training.experiment.train",
}

# A bare clone has etl/, training/ ... next to this folder rather than in it.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "etl" / "__init__.py").is_file():
    __path__.append(str(_checkout))


def __getattr__(name: str) -> Any:
    if name == "search":
        return importlib.import_module(".search", __name__)
    if name not in _HOME_OF:
        raise AttributeError(f"module 'lakelens' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
