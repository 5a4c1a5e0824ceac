"""An evaluation as one self-contained HTML page."""

from __future__ import annotations

from typing import Any

from ...html_page import render, tail_of
from .result import EvaluationResult


def render_page(template: str, result: EvaluationResult, **values: Any) -> str:
    """Renders a task's page; `values` are what its template refers to in addition to the result."""
    where = [result.model, f"checkpoint {result.digest[:12]}"]
    if result.trained_on:
        where.append(f"trained on {result.trained_on}")
    where.append(f"{result.table}@{result.version}, {f'split {result.split}' if result.split else 'all splits'}")
    return render(
        __package__,
        template,
        result=result,
        evaluation=result.evaluation,
        comparison=result.comparison,
        name=f"{tail_of(result.model)} on {result.table.rstrip('/').rpartition('/')[2]}@{result.version}",
        where=" · ".join(where),
        **values,
    )
