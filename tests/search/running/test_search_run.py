"""Rules of which process of a running search gets a trial, and of what ends the search."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from lakelens.errors import NotEnoughSlotsError, RankFailedError, VersionFilesMissingError
from lakelens.progress import ProgressLines
from lakelens.search.journal import RUNNING, Journal, Measurement, TrialState
from lakelens.search.running.places import Place, share_of
from lakelens.search.running.search_run import SearchRun
from lakelens.search.running.slot_process import SlotProcess, described
from lakelens.search.running.state import SearchState
from lakelens.search.running.trial_runs import TrialRuns, plan_search, searcher_of
from lakelens.tracking.requests import ChildRuns
from lakelens.tracking.runs import RunReference
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.segments.outcome import SegmentOutcome

pytestmark = pytest.mark.unit


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def search(keys, tmp_path, said) -> Iterator[SearchRun]:
    """A search that has started and trains nothing."""
    plan = plan_search(ExperimentConfig.read(keys))
    children = ChildRuns(RunReference(keys["tracking"]["uri"], "1", "parent", "here"))
    with (
        TrialRuns(plan, children, {}, []) as runs,
        share_of("tests", lambda: 2, size=1, priority=None, most=None) as share,
    ):
        state = SearchState(searcher_of(plan.config), plan.config.goal, Journal(tmp_path / "journal"))
        state.start({})
        place = Place("tests", "these tests", lambda: 2, lambda _: {}, None)
        yield SearchRun(plan, state, runs, share, place, ProgressLines("search", said, every_s=0.0, unit="epochs"))


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


def test_a_trial_whose_rows_are_gone_has_not_failed_and_the_search_ends_with_that_error(search, keys, tmp_path):
    table = tmp_path / "squares"
    shutil.copytree(keys["data"]["table"], table)
    keys["data"]["table"] = str(table)
    search.plan = plan_search(ExperimentConfig.read(keys))
    process, trial = SlotProcess(search, (0,), {}, None), search.state.trials[0]
    search.state.launch(trial, (0,), "run", 0)
    for path in table.glob("split=validation/*.parquet"):
        path.unlink()
    process.current = SimpleNamespace(trial=trial)
    with pytest.raises(VersionFilesMissingError, match="removed by VACUUM or by hand"):
        process._ended(process.current, SegmentOutcome(failure=("FeedError", "it cannot be read")))
    process._failed(RankFailedError("rank 0 raised"))
    assert isinstance(search.error, VersionFilesMissingError)
    assert trial.state == RUNNING


def test_the_lengths_of_all_trials_and_the_best_metric_are_shown(search, said):
    search._show()
    first = search.state.trials[0]
    search.state.launch(first, (0,), "run", 0)
    search.state.validated(first, Measurement(2, 6, 2, 0.25, {"val_loss": 0.25}), reached=False)
    search._show()
    begun, trained = said.getvalue().splitlines()
    assert begun == "search: 0 of 18 epochs (3 waiting), 0.0 epochs/s"
    assert trained.startswith("search: 2 of 18 epochs (1 running, 2 waiting), ")
    assert trained.endswith(" left, val_loss 0.25")
    assert described(first, search.state.searcher).startswith("learning_rate=")


def test_another_process_pauses_a_search_and_lets_it_go_on_and_ends_it(search, said):
    process = SlotProcess(search, (0,), {}, None)
    search.obey("pause")
    assert not search.may_go_on(process)
    search.obey("resume")
    assert search.may_go_on(process)
    search.obey("stop")
    assert not search.may_go_on(process)
    assert search.ending == "given up"
    assert said.getvalue().splitlines()[0] == "pause was requested by another process"


def test_a_search_that_ends_starts_no_process(search):
    search.abort(NotEnoughSlotsError("none"))
    search._start_processes()
    assert search._processes == []
    assert search._share.take() == (0,)


def test_a_trial_that_another_thread_has_just_created_has_no_checkpoints_to_remove(keys):
    keys["checkpoint_storage"]["save_experiment_best"] = 1
    plan = plan_search(ExperimentConfig.read(keys))
    parent = RunReference(keys["tracking"]["uri"], "0", "search", "here")
    with TrialRuns(plan, ChildRuns(parent), {}, [(1, 2)]) as runs:
        runs.prune([TrialState(number=4, hyperparameters={}, asked=1)])
        assert runs.folders == {}
