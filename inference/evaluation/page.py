"""An evaluation as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...html_page import render, tail_of
from .plots import thumbnail
from .result import EvaluationResult, Shown


def evaluation_page(
    result: EvaluationResult,
    plots: Mapping[str, bytes],
    mistakes: Sequence[Shown],
    changes: Mapping[str, Sequence[Shown]],
) -> str:
    """Renders the page.

    Args:
        result: The numbers.
        plots: PNG files by name; those of slices are called `slice_<column>`.
        mistakes: The wrong answers with the highest probability.
        changes: Images whose answer changed, by heading.

    Raises:
        MissingDependencyError: If Jinja2 is not installed.
    """
    return render_page("page.html", result, plots=plots, mistakes=mistakes, changes=changes, thumbnail=thumbnail)


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
