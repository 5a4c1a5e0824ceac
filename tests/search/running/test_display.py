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
        {"optimizer": {"rate": {"type": "double", "minval": 0.5, "maxval": 0.5}}, "units": 8},
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
        "search 50%: 1 trial done, 0 running, 0 paused, 1 waiting; about 2 min left; "
        "best val_loss 0.25: trial 0, optimizer.rate=0.5"
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


@pytest.mark.unit
def test_what_is_shown_last_stays_however_soon_it_comes():
    log, terminal = io.StringIO(), io.StringIO()
    for shown in (LogDisplay(log), TerminalDisplay(terminal)):
        shown.show(["a trial", "begins"])
        shown.show(["ended"], last=True)
        shown.say("the search has finished")
    assert log.getvalue() == "ended\nthe search has finished\n"
    assert terminal.getvalue() == "\x1b[Ja trial\nbegins\n\x1b[2F\x1b[Jended\n\x1b[Jthe search has finished\n"


@pytest.mark.unit
def test_a_terminal_gets_no_more_lines_than_it_has_and_none_that_it_would_wrap(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "6")
    terminal = io.StringIO()
    TerminalDisplay(terminal).show([*(f"trial {number} of very many" for number in range(9)), "a summary of two lines"])
    assert terminal.getvalue().removeprefix("\x1b[J").splitlines() == [
        "trial 0 of very ma…",
        "trial 1 of very ma…",
        "... and 7 more",
        "a summary of two",
        "lines",
    ]
