"""The report of a search as one HTML page; pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone

from ...html_page import render
from .history import SearchHistory, TrialHistory, value_at
from .importance import Importance
from .plots import METRIC_BY, MOST_AXES


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
    sign = 1 if history.minimized else -1

    def rank(trial: TrialHistory) -> tuple[float, float]:
        return (-trial.length, sign * trial.last if math.isfinite(trial.last) else math.inf)

    return render(
        __package__,
        "page.html",
        history=history,
        plots=plots,
        importance=importance,
        experiment=experiment,
        facts=_facts(history),
        started=datetime.fromtimestamp(history.start, timezone.utc),
        ranked=sorted(history.trials, key=rank),
        most_axes=MOST_AXES,
        metric_plots={METRIC_BY + name: name for name in history.axes},
        value_at=value_at,
    )


def _facts(history: SearchHistory) -> list[tuple[str, str]]:
    best, searcher = history.best, history.config.searcher
    trained = sum(trial.length for trial in history.trials)
    counted = [trial for trial in history.trials if trial.state != "invalid"]
    states = Counter(trial.state for trial in history.trials)
    facts = [
        ("none" if best is None else f"{best[2]:.5g}", f"best {history.metric}"),
        (f"{len(history.trials):,}", "trials"),
    ]
    facts += [(f"{count:,}", state) for state, count in states.most_common()]
    facts += [(f"{trained:,.5g}", f"{history.unit} trained")]
    whole = len(counted) * searcher.max_length.amount
    if 0 < trained < whole and history.finished:
        facts += [(f"{whole / trained:.1f}x", f"fewer {history.unit} than all trials to the end")]
    facts += [(_duration(history.end - history.start), "on the clock")]
    if history.slots:
        held = sum((span.end - span.start) * len(span.slots) for trial in history.trials for span in trial.spans)
        share = held / (len(history.slots) * max(history.end - history.start, 1e-9))
        facts += [(f"{share:.0%}", f"of {len(history.slots)} slots used")]
    return facts


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
