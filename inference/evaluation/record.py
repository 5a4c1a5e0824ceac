"""Stores an evaluation in a folder and in the run of the model."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from ...errors import InvalidArgumentError
from ...stores.data_files import write_files
from ...tracking.run_values import RunValues
from ...tracking.run_writer import log_files
from ...tracking.runs import as_tracking_errors, open_client
from ...training.checkpoints.references import ModelRef
from .result import EvaluationResult

PAGE = "evaluation.html"
_UNFIT = re.compile(r"[^\w.-]+")
_SCHEME = re.compile(r"(runs|models):/|(experiment|search):")
_RUN_ID = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24}\b")


def place_of(table: str, version: int, split: str | None) -> str:
    """Names an evaluation by table, version and split, such as `images-v3-test`."""
    return file_name(f"{table.rstrip('/').rpartition('/')[2]}-v{version}-{split or 'all'}")


def short_name(model: ModelRef) -> str:
    """Names a model by its reference and its checkpoint, such as `photos_champion-1a2b3c4d`."""
    scheme = _SCHEME.match(model.uri)
    name = model.uri[scheme.end() :] if scheme else model.uri.rstrip("/").rpartition("/")[2]
    return f"{file_name(_RUN_ID.sub(lambda found: found[1], name))}-{model.digest[:8]}"


def file_name(name: str, suffix: str = "") -> str:
    """Makes a name valid for files and for MLflow."""
    return _UNFIT.sub("_", name) + suffix


def write_report(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes page and plots into a folder; creates it if needed."""
    try:
        write_files(folder, files)
    except OSError as error:
        raise InvalidArgumentError(f"out = {str(folder)!r} cannot be written ({error}); give another folder") from error


def record_evaluation(
    model: ModelRef, result: EvaluationResult, files: Mapping[str, bytes], other: ModelRef | None = None
) -> str | None:
    """Writes an evaluation into the model's run: metrics as `evaluation/<table>-v<version>-<split>/<name>`, and files.

    A comparison with another model has a separate path, `...-vs-<other model>`, for its files and its metrics.

    Returns where the files are, as `runs:/<id>/...`; None for a model named by its path.
    """
    if model.tracking_uri is None or model.run_id is None:
        return None
    place = f"evaluation/{place_of(result.table, result.version, result.split)}"
    client = open_client(model.tracking_uri)
    with as_tracking_errors(model.tracking_uri, f"write an evaluation into run {model.run_id}"):
        values, now = RunValues(client, model.run_id), int(time.time() * 1000)
        values.log_metrics({f"{place}/{name}": value for name, value in result.evaluation.scores.items()}, 0, now)
        if other is not None and result.comparison is not None:
            place = f"{place}-vs-{short_name(other)}"
            values.log_metrics({f"{place}/{name}": value for name, value in result.comparison.scores.items()}, 0, now)
        log_files(client, model.run_id, files, place)
    return f"runs:/{model.run_id}/{place}"
