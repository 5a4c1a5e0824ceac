"""Writes the report of a search from its journal."""

from __future__ import annotations

from pathlib import Path

from ...errors import InvalidArgumentError
from ...stores.data_files import write_files
from .best import best_experiment
from .history import read_history
from .importance import importance_of
from .page import render_page
from .plots import draw_plots

REPORT_FOLDER = "report"
PAGE, BEST = "report.html", "best.yaml"


def write_report(folder: str | Path, out: str | Path) -> Path:
    """Writes the self-contained `report.html`, its PNG files, and `best.yaml`."""
    out = Path(out)
    history = read_history(Path(folder))
    importance = importance_of(history)
    plots = draw_plots(history, importance.shares)
    experiment = best_experiment(history)
    files = {f"{name}.png": data for name, data in plots.items()}
    files |= {} if experiment is None else {BEST: experiment.encode()}
    files[PAGE] = render_page(history, plots, importance, experiment).encode()
    try:
        write_files(out, files)
    except OSError as error:
        raise InvalidArgumentError(f"the report cannot be written to {out}: {error}") from error
    return out / PAGE
