"""What a person sees of a running search."""

from __future__ import annotations

import io

import pytest

from lakelens.search import create_searcher
from lakelens.search.running.display import LogDisplay, TerminalDisplay, display_for, lines_of
from lakelens.search.running.state import SearchState
from lakelens.search.running.trial_state import Measurement
from lakelens.training.trials.metrics import Goal


class NoJournal:
    def append(self, events) -> None:
        pass


@pytest.fixture
def state() -> SearchState:
    searcher = create_searcher(
        {"name": "random", "metric": "val_loss", "max_length": {"epochs": 4}, "max_trials": 2},
        {"optimizer": {"rate": {"type": "double", "minval": 0.5, "maxval": 0.5}}},
    )
    state = SearchState(searcher, Goal("val_loss", "min"), NoJournal())
    state.start({})
    return state


@pytest.mark.unit
def test_each_running_trial_has_a_line_and_the_search_a_summary(state):
    first = state.trials[0]
    state.launch(first, (1,), "run", 0)
    assert lines_of(state, "val_loss", 10.0, 0.0) == [
        "trial 0    [------------] 0/4 epochs  val_loss -  slot 1  optimizer.rate=0.5",
        "search 0%: 0 trials done, 1 running, 0 paused, 1 waiting",
    ]
    state.validated(first, Measurement(2, 20, 2, 0.25, {"val_loss": 0.25}), reached=False)
    running, summary = lines_of(state, "val_loss", 10.0, 0.0)
    assert running == "trial 0    [######------] 2/4 epochs  val_loss 0.25  slot 1  optimizer.rate=0.5"
    assert summary.endswith("best val_loss 0.25: trial 0, optimizer.rate=0.5")
    state.validated(first, Measurement(4, 40, 4, 0.5, {"val_loss": 0.5}), reached=True)
    state.ended_segment(first, 4)
    (summary,) = lines_of(state, "val_loss", 90.0, 0.0)
    assert summary == (
        "search 50%: 1 trials done, 0 running, 0 paused, 1 waiting; "
        "best val_loss 0.25: trial 0, optimizer.rate=0.5; about 2 min left"
    )


@pytest.mark.unit
def test_a_log_has_plain_lines_and_a_terminal_draws_its_last_lines_again():
    log = io.StringIO()
    assert isinstance(display_for(log), LogDisplay)
    LogDisplay(log).say("trial 0: epoch 1/4", detail=True)
    LogDisplay(log).show(["a trial", "the summary"])
    assert log.getvalue() == "trial 0: epoch 1/4\n"
    terminal = io.StringIO()
    shown = TerminalDisplay(terminal)
    shown.show(["a trial", "the summary"])
    shown.say("trial 0: epoch 1/4", detail=True)
    shown.say("trial 0: paused")
    assert terminal.getvalue() == ("\x1b[Ja trial\nthe summary\n\x1b[2F\x1b[Jtrial 0: paused\na trial\nthe summary\n")
