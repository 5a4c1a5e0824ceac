"""The report of a search as one HTML page; pure. Every text of the search goes through `escape`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from html import escape
from typing import Any

from ... import html_page
from .history import SearchHistory, TrialHistory, value_at
from .importance import Importance
from .plots import MOST_AXES

_MOST_FAILURES = 20
_BY = "metric_by_"


def render_page(
    history: SearchHistory, plots: Mapping[str, bytes], importance: Importance, experiment: str | None
) -> str:
    """Renders the page.

    Args:
        history: The search.
        plots: PNG files by name, as `plots.draw_plots` gives them.
        importance: Of the hyperparameters.
        experiment: The best trial's experiment file.
    """
    config = history.config
    table = f"{config.data.table}@{config.data.version}"
    started = datetime.fromtimestamp(history.start, timezone.utc)
    return html_page.render_page(
        config.name or "Search",
        f"{config.searcher.name} on {table} · started {started:%Y-%m-%d %H:%M} UTC · "
        + ("finished" if history.finished else "not finished: what the journal holds so far"),
        _facts(history),
        [
            ("best", "Best", _best(history, experiment)),
            (
                "curves",
                "Learning curves",
                html_page.plot_tag(plots.get("learning_curves"), "Learning curves of all trials", 700),
            ),
            ("parallel", "Parallel coordinates", _parallel(history, plots)),
            ("hyperparameters", "Hyperparameters", _hyperparameters(history, plots, importance)),
            ("slots", "Slots", _slots(history, plots)),
            ("failures", "Failures", _failures(history)),
            ("trials", "Trials", _trials(history)),
        ],
        "Made by lakelens from the search's journal.",
    )


def _facts(history: SearchHistory) -> dict[str, str]:
    best, searcher = history.best, history.config.searcher
    trained = sum(trial.length for trial in history.trials)
    counted = [trial for trial in history.trials if trial.state != "invalid"]
    states = Counter(trial.state for trial in history.trials)
    facts = {
        f"best {history.metric}": "none" if best is None else _number(best[2]),
        "trials": f"{len(history.trials):,}",
    }
    facts |= {state: f"{count:,}" for state, count in states.most_common()}
    facts[f"{history.unit} trained"] = f"{trained:,.5g}"
    whole = len(counted) * searcher.max_length.amount
    if 0 < trained < whole and history.finished:
        facts[f"fewer {history.unit} than all trials to the end"] = f"{whole / trained:.1f}x"
    facts["on the clock"] = _duration(history.end - history.start)
    if history.slots:
        facts[f"of {len(history.slots)} slots used"] = f"{_slot_use(history):.0%}"
    return facts


def _slot_use(history: SearchHistory) -> float:
    held = sum((span.end - span.start) * len(span.slots) for trial in history.trials for span in trial.spans)
    return held / (len(history.slots) * max(history.end - history.start, 1e-9))


def _best(history: SearchHistory, experiment: str | None) -> str:
    best = history.best
    if best is None or experiment is None:
        return "<p>No trial has been validated with a number. Look at the failures below.</p>"
    trial, length, metric = best
    values = "".join(
        f"<dt>{escape(name)}</dt><dd><b>{escape(_value(value_at(trial.hyperparameters, name)))}</b></dd>"
        for name in history.axes
    )
    return (
        f"<p>Trial {trial.number}: {escape(history.metric)} <b>{_number(metric)}</b> after "
        f"{escape(history.lengths(length))}.</p><dl>{values}</dl>"
        "<details><summary>As an experiment file: lakelens train best.yaml</summary>"
        f"<pre><code>{escape(experiment)}</code></pre></details>"
    )


def _parallel(history: SearchHistory, plots: Mapping[str, bytes]) -> str:
    image = html_page.plot_tag(plots.get("parallel_coordinates"), "Hyperparameters and metric of all trials")
    if not image:
        return ""
    more = len(history.axes) - MOST_AXES
    note = f" The {MOST_AXES} most important of {len(history.axes)} hyperparameters." if more > 0 else ""
    return f"<p>A line for each trial, brighter with its last metric; the best trial in orange.{note}</p>{_wide(image)}"


def _hyperparameters(history: SearchHistory, plots: Mapping[str, bytes], importance: Importance) -> str:
    if not history.axes:
        return "<p>No hyperparameter was searched.</p>"
    note = importance.note
    if not note:
        note = (
            "Permutation importance: how much a random forest errs when one hyperparameter is shuffled, as a share of "
            f"all. On trials that it has not seen, the forest explains {importance.explained:.0%} of what the "
            "hyperparameters decide."
        )
    cards = "".join(
        f'<div class="card">{html_page.plot_tag(data, f"{history.metric} against {name.removeprefix(_BY)}")}</div>'
        for name, data in plots.items()
        if name.startswith(_BY)
    )
    grid = (
        "<h3>Last metric of each trial</h3><p>Colours as in the learning curves; the best trial is ringed, and a cross "
        f'is a trial without a number.</p><div class="cards" style="--card:320px">{cards}</div>'
    )
    bars = html_page.plot_tag(plots.get("importance"), "Importance of hyperparameters", 640)
    return f"<p>{escape(note)}</p>{bars}{grid if cards else ''}"


def _slots(history: SearchHistory, plots: Mapping[str, bytes]) -> str:
    image = html_page.plot_tag(plots.get("slots"), "Trials on slots over time")
    return f"<p>Who ran where: the number of the trial in each stretch.</p>{_wide(image)}" if image else ""


def _failures(history: SearchHistory) -> str:
    failed = [trial for trial in history.trials if trial.error]
    if not failed:
        return ""
    rows = [(str(trial.number), trial.state, trial.error) for trial in failed[:_MOST_FAILURES]]
    more = f"<p>and {len(failed) - _MOST_FAILURES:,} more.</p>" if len(failed) > _MOST_FAILURES else ""
    return html_page.table_tag([("trial", True), ("state", True), ("error", True)], rows) + more


def _trials(history: SearchHistory) -> str:
    sign = 1 if history.minimized else -1

    def rank(trial: TrialHistory) -> tuple[float, float]:
        return (-trial.length, sign * trial.last if math.isfinite(trial.last) else math.inf)

    rows = [
        [str(trial.number), trial.state, _number(trial.last), f"{trial.length:g}"]
        + [_value(value_at(trial.hyperparameters, name)) for name in history.axes]
        for trial in sorted(history.trials, key=rank)
    ]
    numbers = [(name, False) for name in (history.metric, history.unit, *history.axes)]
    return html_page.table_tag([("trial", True), ("state", True), *numbers], rows)


def _wide(image: str) -> str:
    return f'<div class="wide">{image}</div>'


def _number(value: float) -> str:
    return f"{value:.5g}" if math.isfinite(value) else "-"


def _value(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
