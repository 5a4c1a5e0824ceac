"""What an evaluation leaves: a self-contained HTML page with files, in a folder and in the run of the model."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...errors import InvalidArgumentError
from ...results import render, title_of
from ...stores.data_files import write_files
from ...tracking.run_values import RunValues
from ...tracking.run_writer import log_files
from ...tracking.runs import as_tracking_errors, open_client
from ...training.checkpoints.references import ModelRef
from .result import EvaluationResult

PAGE = "evaluation.html"
# A class with fewer rows is marked.
_FEW_ROWS = 20
# 95 % of a normal distribution lie within this number of standard deviations.
_Z = 1.959964
_UNFIT = re.compile(r"[^\w.-]+")
_SCHEME = re.compile(r"(runs|models):/|(experiment|search):")
_RUN_ID = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24}\b")


def render_page(template: str, result: EvaluationResult, model: str, **values: Any) -> str:
    """Renders a task's page; `model` names the model, and `values` are what else its template refers to."""
    where = [result.model, f"checkpoint {result.digest[:12]}"]
    if result.trained_on:
        table, _, version = result.trained_on.rpartition("@")
        where.append(f"trained on {f'version {version}' if table == result.table else result.trained_on}")
    where.append(f"evaluated on {result.table}@{result.version}")
    split = f"split {result.split}" if result.split else "all splits"
    return render(
        __package__,
        template,
        result=result,
        evaluation=result.evaluation,
        comparison=result.comparison,
        few_rows=_FEW_ROWS,
        interval=recall_interval,
        name=title_of(model, result.table, result.version, datetime.now(timezone.utc), split),
        where=" · ".join(where),
        **values,
    )


def recall_interval(recall: float | None, rows: int) -> tuple[float, float] | None:
    """Gives Wilson's interval of 95 % for a share of independent rows; None without rows."""
    # E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", Journal of the American
    # Statistical Association 22 (1927).
    if recall is None or rows == 0:
        return None
    weight = 1 + _Z**2 / rows
    middle = (recall + _Z**2 / (2 * rows)) / weight
    side = _Z / weight * math.sqrt(recall * (1 - recall) / rows + _Z**2 / (4 * rows**2))
    return max(0.0, middle - side), min(1.0, middle + side)


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
    """Writes an evaluation into the model's run; returns where, as `runs:/<id>/...`, None for a model without a run."""
    if model.tracking_uri is None or model.run_id is None:
        return None
    # `evaluation/<table>-v<version>-<split>/<name>`; a comparison has a separate path, `...-vs-<other model>`.
    table = result.table.rstrip("/").rpartition("/")[2]
    place = "evaluation/" + file_name(f"{table}-v{result.version}-{result.split or 'all'}")
    client = open_client(model.tracking_uri)
    with as_tracking_errors(model.tracking_uri, f"write an evaluation into run {model.run_id}"):
        values, now = RunValues(client, model.run_id), int(time.time() * 1000)
        values.log_metrics({f"{place}/{name}": value for name, value in result.evaluation.scores.items()}, 0, now)
        if other is not None and result.comparison is not None:
            place = f"{place}-vs-{short_name(other)}"
            values.log_metrics({f"{place}/{name}": value for name, value in result.comparison.scores.items()}, 0, now)
        log_files(client, model.run_id, files, place)
    return f"runs:/{model.run_id}/{place}"
