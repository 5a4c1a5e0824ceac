"""Writes the report of a search from its journal."""

from __future__ import annotations

from pathlib import Path

from ...errors import InvalidArgumentError
from .best import best_experiment
from .history import read_history
from .importance import importance_of
from .page import render_page
from .plots import draw_plots

REPORT_FOLDER = "report"
PAGE, BEST = "report.html", "best.yaml"


def write_report(folder: str | Path, out: str | Path) -> Path:
    """Writes the self-contained `report.html`, its PNG files, and `best.yaml`.

    Args:
        folder: The search's folder, with its journal. The search may still run.
        out: Folder for the files; made when missing.

    Returns:
        The page.

    Raises:
        InvalidArgumentError: If the journal does not exist, or `out` cannot be written.
        MissingDependencyError: If matplotlib or scikit-learn is not installed.
    """
    out = Path(out)
    history = read_history(Path(folder))
    importance = importance_of(history)
    plots = draw_plots(history, importance.shares)
    experiment = best_experiment(history)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in plots.items():
            (out / f"{name}.png").write_bytes(data)
        if experiment is not None:
            (out / BEST).write_text(experiment, encoding="utf-8")
        page = out / PAGE
        page.write_text(render_page(history, plots, importance, experiment), encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"the report cannot be written to {out}: {error}") from error
    return page
