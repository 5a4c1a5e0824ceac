"""lakelens turns a folder of images into a scored Delta table, on open-source Spark.

The public names are imported on first use: `import lakelens` needs neither a JVM nor TensorFlow.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import petastorm_names as _petastorm_names
from .errors import (
    ConfigurationError,
    IngestLossError,
    InvalidHyperparameters,
    LakelensError,
    MissingDependencyError,
    ModelNotFoundError,
    NotADeltaTableError,
    NotEnoughSlotsError,
    RankFailedError,
    ScoringFailedError,
    SearchFailedError,
    SearchPaused,
    TableConflictError,
    TrackingError,
    TrainingPaused,
    UsageError,
    VersionNotFoundError,
    VersionProtectedError,
)

if TYPE_CHECKING:
    from . import hvd as hvd
    from .etl.image_table import ImageTable
    from .etl.images.recipe import Limits, Recipe
    from .etl.ingest.results import IngestResult, StreamResult
    from .freed_memory import keep_freed_memory
    from .inference.evaluation.evaluate import evaluate
    from .inference.evaluation.result import EvaluationResult
    from .inference.export.export import ExportResult, export_model
    from .inference.promotion import Promotion, promote
    from .inference.scoring.score import ScoreResult, score
    from .inference.trace import PredictionTrace, RunTrace, trace, trace_run
    from .inference.udf import predict_udf
    from .job_keys import Job
    from .search.running.result import SearchResult
    from .search.running.run import search as search
    from .spark.session import spark_session
    from .tracking.run_listing import RunDetails, RunSummary, runs, show_run
    from .training.configuration.experiment import ExperimentConfig
    from .training.experiment.reproduce import Reproduction, reproduce
    from .training.experiment.run_trial import TrainResult
    from .training.experiment.train import resume, train
    from .training.feed.converter import decode_images, make_delta_converter
    from .training.feed.feed import DeltaFeed
    from .training.runner.runner import HorovodRunner
    from .training.trials.context import TrialContext
    from .training.trials.keras_trial import KerasTrial
    from .training.trials.torch_trial import TorchTrial
    from .training.trials.trial import Trial

__version__ = "0.1.0"

_petastorm_names.install()  # so that an import of Petastorm after that of lakelens works with a newer pyarrow

__all__ = [
    "ConfigurationError",
    "DeltaFeed",
    "EvaluationResult",
    "ExperimentConfig",
    "ExportResult",
    "HorovodRunner",
    "ImageTable",
    "IngestLossError",
    "IngestResult",
    "InvalidHyperparameters",
    "Job",
    "KerasTrial",
    "LakelensError",
    "Limits",
    "MissingDependencyError",
    "ModelNotFoundError",
    "NotADeltaTableError",
    "NotEnoughSlotsError",
    "PredictionTrace",
    "Promotion",
    "RankFailedError",
    "Recipe",
    "Reproduction",
    "RunDetails",
    "RunSummary",
    "RunTrace",
    "ScoreResult",
    "ScoringFailedError",
    "SearchFailedError",
    "SearchPaused",
    "SearchResult",
    "StreamResult",
    "TableConflictError",
    "TorchTrial",
    "TrackingError",
    "TrainResult",
    "TrainingPaused",
    "Trial",
    "TrialContext",
    "UsageError",
    "VersionNotFoundError",
    "VersionProtectedError",
    "__version__",
    "decode_images",
    "evaluate",
    "export_model",
    "hvd",
    "keep_freed_memory",
    "make_delta_converter",
    "predict_udf",
    "promote",
    "reproduce",
    "resume",
    "runs",
    "score",
    "search",
    "show_run",
    "spark_session",
    "trace",
    "trace_run",
    "train",
]

# The names of each module that is imported when one of them is first used.
_NAMES = {
    ".freed_memory": ("keep_freed_memory",),
    ".etl.image_table": ("ImageTable",),
    ".etl.images.recipe": ("Limits", "Recipe"),
    ".etl.ingest.results": ("IngestResult", "StreamResult"),
    ".inference.evaluation.evaluate": ("evaluate",),
    ".inference.evaluation.result": ("EvaluationResult",),
    ".inference.export.export": ("ExportResult", "export_model"),
    ".inference.promotion": ("Promotion", "promote"),
    ".inference.scoring.score": ("ScoreResult", "score"),
    ".inference.trace": ("PredictionTrace", "RunTrace", "trace", "trace_run"),
    ".inference.udf": ("predict_udf",),
    ".job_keys": ("Job",),
    ".search.running.result": ("SearchResult",),
    ".spark.session": ("spark_session",),
    ".tracking.run_listing": ("RunDetails", "RunSummary", "runs", "show_run"),
    ".training.configuration.experiment": ("ExperimentConfig",),
    ".training.experiment.reproduce": ("Reproduction", "reproduce"),
    ".training.experiment.run_trial": ("TrainResult",),
    ".training.experiment.train": ("resume", "train"),
    ".training.feed.converter": ("decode_images", "make_delta_converter"),
    ".training.feed.feed": ("DeltaFeed",),
    ".training.runner.runner": ("HorovodRunner",),
    ".training.trials.context": ("TrialContext",),
    ".training.trials.keras_trial": ("KerasTrial",),
    ".training.trials.torch_trial": ("TorchTrial",),
    ".training.trials.trial": ("Trial",),
}
_HOME_OF = {name: module for module, names in _NAMES.items() for name in names}
# Packages that are public themselves; `lakelens.search` can also be called.
_MODULES = ("hvd", "search")

# A bare clone has etl/, training/ ... next to this folder rather than in it.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "etl" / "__init__.py").is_file():
    __path__.append(str(_checkout))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name == "score_stream":  # not an AttributeError, whose text `from lakelens import score_stream` would drop
        raise UsageError(
            "lakelens.score_stream is now lakelens.score(..., watch_s=SECONDS), without a checkpoint folder"
        )
    if name not in _HOME_OF:
        raise AttributeError(f"module 'lakelens' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
