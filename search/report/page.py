"""The report of a search as one HTML page; pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

import numpy as np

from ...results import counted, duration, noun_of, render
from .history import SearchHistory
from .importance import Importance
from .plots import MOST_AXES


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
