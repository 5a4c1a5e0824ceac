"""An evaluation as one self-contained HTML page."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from ...results import render, title_of
from .intervals import FEW_ROWS, recall_interval
from .result import EvaluationResult


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
        few_rows=FEW_ROWS,
        interval=recall_interval,
        name=title_of(model, result.table, result.version, datetime.now(timezone.utc), split),
        where=" · ".join(where),
        **values,
    )
