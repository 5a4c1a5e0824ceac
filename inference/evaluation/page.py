"""An evaluation as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...html_page import render
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
    return render(
        __package__,
        "page.html",
        result=result,
        plots=plots,
        mistakes=mistakes,
        changes=changes,
        thumbnail=thumbnail,
    )
