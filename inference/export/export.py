"""Exports a recorded model for a server that does not have lakelens."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InvalidArgumentError, LakelensError, ModelMismatchError
from ...extras import require
from ...locations import require_writable
from ...options import named_options
from ...results import ReadableResult
from ...stores.write_once import partial_path, publish
from ...training.checkpoints.manifests import KERAS
from ...training.checkpoints.references import resolve_model
from ...training.tasks.classification import Classification
from ...training.tasks.registry import task_of
from ..model.failures import first_line, is_of_the_machine
from ..model.onnx_engine import CONVERTERS
from ..model.user_code import user_code
from .savedmodel import write_onnx, write_pyfunc, write_savedmodel

SAVEDMODEL, PYFUNC, ONNX = "savedmodel", "pyfunc", "onnx"
FORMATS = (SAVEDMODEL, PYFUNC, ONNX)
_PACKAGES = {SAVEDMODEL: (), PYFUNC: ("mlflow",), ONNX: CONVERTERS}


@dataclass(frozen=True, repr=False)
class ExportResult(ReadableResult):
    """The result of an export.

    Attributes:
        model: The model as the caller named it.
        digest: Digest of its checkpoint.
        format: One of `FORMATS`.
        path: The folder that was written, or the file of `onnx`.
        seconds: From the call to this result.
    """

    model: str
    digest: str
    format: str
    path: str
    seconds: float


@named_options
def export_model(
    model: str | Path,
    out: str | Path,
    *,
    format: str = SAVEDMODEL,
    tracking_uri: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
) -> ExportResult:
    """Writes a Keras classifier for a server without lakelens, and checks that it predicts what `score` does.

    `savedmodel` is a TensorFlow SavedModel that takes encoded images (its `serving_default`) or float images, see
    `write_savedmodel`. `pyfunc` is an MLflow model around it, for `mlflow.pyfunc.load_model`. `onnx` is one file that
    takes float images, see `write_onnx`.

    Args:
        model: `runs:/<run id>`, `models:/<name>@<alias>`, `experiment:<id>` or a checkpoint's path (`resolve_model`).
        out: The folder to write, of `onnx` the file; must not exist.
        format: `savedmodel`, `pyfunc` or `onnx`.
        tracking_uri: MLflow tracking URI.
        custom_objects: Classes and functions by name that the model needs and neither Keras nor its run's recorded code
            has.

    Raises:
        InvalidArgumentError: If the format is unknown, or `out` exists or cannot be written.
        ModelNotFoundError: If `model` has no checkpoint.
        CheckpointError: If the checkpoint is damaged, or has refused content.
        ModelMismatchError: If the model is not a Keras classifier, or does not predict the same when it is exported.

    Examples:
        >>> lakelens.export_model("models:/photos@champion", "served").format
        'savedmodel'
    """
    started = time.perf_counter()
    if format not in FORMATS:
        raise InvalidArgumentError(f"format={format!r}: give one of {', '.join(FORMATS)}")
    require("lakelens.export_model", "tensorflow", "keras", *_PACKAGES[format])
    folder = Path(out).absolute()
    if folder.exists():
        raise _taken(out)
    require_writable("out", folder)
    reference = resolve_model(model, tracking_uri)
    task = task_of(reference.checkpoint)
    backend = reference.checkpoint.backend
    if not isinstance(task, Classification) or backend != KERAS:
        raise ModelMismatchError(
            f"{reference.uri}: only models of the task {Classification.name!r} and the backend {KERAS!r} are exported, "
            f"this one's are {task.name!r} and {backend!r}; score it with lakelens"
        )
    code = user_code(reference, custom_objects)
    with code.loaded() as objects, partial_path(folder.parent, folder.name) as scratch:
        scratch.mkdir()
        saved = scratch / "model"
        try:
            (write_onnx if format == ONNX else write_savedmodel)(reference.checkpoint, saved, objects)
        except Exception as error:
            if isinstance(error, LakelensError) or is_of_the_machine(error):
                raise
            raise ModelMismatchError(
                f"{reference.uri}: the model cannot be exported as {format}, {first_line(error)}. Choose another "
                "format, or score it with lakelens"
            ) from error
        if format == PYFUNC:
            write_pyfunc(saved, scratch / "pyfunc", reference)
            saved = scratch / "pyfunc"
        if not publish(saved, folder):
            raise _taken(out)
    return ExportResult(
        model=reference.uri,
        digest=reference.digest,
        format=format,
        path=str(folder),
        seconds=round(time.perf_counter() - started, 3),
    )


def _taken(out: str | Path) -> InvalidArgumentError:
    return InvalidArgumentError(f"out = {str(out)!r} exists; give a path that does not")
