"""Rules of which process of a running search gets a trial, and of what ends the search."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import pytest

from lakelens.errors import NotEnoughSlotsError
from lakelens.search.running.commands import CommandInbox
from lakelens.search.running.display import LogDisplay
from lakelens.search.running.journal import Journal
from lakelens.search.running.plan import plan_search, searcher_of
from lakelens.search.running.search_run import SearchRun
from lakelens.search.running.slot_process import SlotProcess
from lakelens.search.running.slots import share_of
from lakelens.search.running.state import SearchState
from lakelens.search.running.trial_runs import TrialRuns
from lakelens.tracking.child_runs import ChildRuns
from lakelens.tracking.runs import RunReference
from lakelens.training.configuration.experiment import ExperimentConfig

pytestmark = pytest.mark.unit


@pytest.fixture
def search(keys, tmp_path) -> Iterator[SearchRun]:
    """A search that has started and trains nothing."""
    plan = plan_search(ExperimentConfig.read(keys))
    children = ChildRuns(RunReference(keys["tracking"]["uri"], "1", "parent", "here"))
    with (
        contextlib.closing(Journal(tmp_path / "journal")) as journal,
        TrialRuns(plan, children, {}, []) as runs,
        share_of("tests", lambda: 2, size=1, priority=None, most=None) as share,
    ):
        state = SearchState(searcher_of(plan.config), plan.config.goal, journal)
        state.start({})
        display = LogDisplay(io.StringIO())
        yield SearchRun(plan, state, runs, share, CommandInbox(tmp_path / "journal"), display, lambda _: {}, None)


def test_a_process_that_was_told_to_pause_gets_no_trial_once_the_search_goes_on(search):
    told, other = (SlotProcess(search, (slot,), {}, None) for slot in (0, 1))
    assert search.assign(told) is search.state.trials[0]
    assert search.may_go_on(told)
    told.controls.tell({"pause": True})
    assert search.assign(told) is None
    assert not search.may_go_on(told)
    assert search.assign(other) is search.state.trials[1]


@pytest.mark.parametrize("other", ["joins", "trains", "none"])
def test_a_search_ends_where_the_cluster_has_no_room_several_times_in_a_row(search, other):
    process = SlotProcess(search, (0,), {}, None)
    search._processes.append(process)
    if other == "trains":
        process.current = object()  # a segment of another trial
    for _ in range(3):
        search.launched(search.state.trials[0])
        if other == "joins":
            search.joined()
        search.short_of_slots(NotEnoughSlotsError("none"))
    assert (search.error is None) == (other != "none")
