"""Writes the report of a search from its journal."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from ...errors import InvalidArgumentError
from ...results import counted, duration, noun_of, render
from ...stores.data_files import write_files
from ...training.configuration.searcher import SINGLE
from .history import SearchHistory, read_history
from .importance import Importance, importance_of
from .plots import MOST_AXES, draw_plots

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


def best_experiment(history: SearchHistory) -> str | None:
    """Writes the experiment file of the best trial; None if no trial has a metric."""
    trial = history.best
    if trial is None or trial.best is None:
        return None
    values = history.config.model_dump(mode="json", exclude_unset=True)
    searcher = history.config.searcher
    values["hyperparameters"] = _as_written(trial.hyperparameters)
    values["searcher"] = {
        "name": SINGLE,
        "metric": history.metric,
        "smaller_is_better": history.minimized,
        "max_length": {searcher.max_length.unit: searcher.max_length.amount},
    }
    for key in ("max_slots", "priority"):
        values.get("resources", {}).pop(key, None)
    values.pop("job", None)
    text = io.StringIO()
    value, where = f"{history.metric} {trial.best.metric:.6g}", history.lengths(trial.best.length)
    text.write(f"# Trial {trial.number} of a search: {value} after {where}.\n")
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style, writer.width = False, 120
    setattr(writer, "sort_base_mapping_type_on_output", False)  # noqa: B010  # ruamel types it as None
    writer.dump(values, text)
    return text.getvalue()


def _as_written(values: Mapping[str, Any]) -> dict[str, Any]:
    """Writes drawn values so that an experiment reads the same ones: those with mappings in them become constants."""
    return {name: _node(value) for name, value in values.items()}


def _node(value: Any) -> Any:
    if isinstance(value, Mapping) and not {"type", "val", "vals", "minval", "maxval"} & value.keys():
        return _as_written(value)
    if isinstance(value, (Mapping, list)):
        return {"type": "const", "val": value}
    return value


def render_page(
    history: SearchHistory, plots: Mapping[str, bytes], importance: Importance, experiment: str | None
) -> str:
    """Renders the page."""
    trials = history.trials
    losses = trials["metric"].where(np.isfinite(trials["metric"]), np.nan) * (1 if history.minimized else -1)
    order = trials.assign(longest=-trials["length"], loss=losses).sort_values(["longest", "loss"], kind="stable").index
    return render(
        __package__,
        "page.html",
        history=history,
        plots=plots,
        importance=importance,
        experiment=experiment,
        facts=_facts(history),
        started=datetime.fromtimestamp(history.start, timezone.utc),
        ranked=trials.loc[order],
        most_axes=MOST_AXES,
    )


def _facts(history: SearchHistory) -> list[tuple[str, str]]:
    best, trials, spans = history.best, history.trials, history.spans
    trained, states = trials["length"].sum(), trials["state"].value_counts()
    ends = ", ".join(f"{count:,} {state}" for state, count in states.items())
    seconds = history.end - history.start
    facts = [
        ("none" if best is None or best.best is None else f"{best.best.metric:.5g}", f"best {history.metric}"),
        (f"{len(trials):,}", f"{noun_of(len(trials), 'trial')}: {ends}"),
        (f"{trained:,.5g}", f"{history.unit} trained"),
    ]
    whole = (len(trials) - states.get("invalid", 0)) * history.config.searcher.max_length.amount
    if 0 < trained < whole and history.finished:
        facts += [(f"{whole / trained:.1f}x", f"fewer {history.unit} than in full")]
    facts += [(duration(seconds), "on the clock")]
    if not spans.empty:
        slots = spans["slot"].nunique()
        share = (spans["end"] - spans["start"]).sum() / (slots * max(seconds, 1e-9))
        facts += [(f"{share:.0%}", f"of {counted(slots, 'slot')} used")]
    return facts
