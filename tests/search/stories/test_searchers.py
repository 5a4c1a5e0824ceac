"""What holds for every searcher: events, replays, limits."""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import pytest
from driving import Run, make, one_bracket
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelens.errors import InvalidArgumentError, SearcherEventError
from lakelens.search import Continue, Create, create_searcher, preview
from lakelens.search.brackets import plan_brackets

pytestmark = pytest.mark.unit

SPACE = {
    "a": {"type": "double", "minval": 0, "maxval": 1, "count": 3},
    "group": {"b": {"type": "categorical", "vals": [1, math.inf, "NaN"]}, "c": {"val": math.nan, "type": "const"}},
}


def seen(searcher):
    """What a runner sees of a searcher, as text, since NaN is not equal to itself."""
    return repr((searcher.states, searcher.finished))


@pytest.mark.parametrize(
    ("event", "kind", "words"),
    [
        (lambda s: s.validated(1, 1, 0.5), SearcherEventError, "no operation waits for its answer; it is paused"),
        (lambda s: s.exited(1, "error"), SearcherEventError, "it is paused"),
        (lambda s: s.validated(99, 1, 0.5), SearcherEventError, "trial 99: .* 13 trials have been created"),
        (lambda s: s.validated(0, 0, 0.5), SearcherEventError, "validated at length 0; it was asked to reach 1"),
        (lambda s: s.start(), SearcherEventError, "start: the search has begun"),
        (lambda s: s.exited(0, "crashed"), InvalidArgumentError, "'crashed'.* error or invalid_hyperparameters"),
        (lambda s: s.validated(0, 1, None), InvalidArgumentError, "metric=None.*number"),
        (lambda s: s.validated(0, 1, True), InvalidArgumentError, "metric=True"),
        (lambda s: s.validated(0, 1.5, 0.5), InvalidArgumentError, "length=1.5"),
        (lambda s: s.exited([0], "error"), InvalidArgumentError, r"trial=\[0\]"),
    ],
)
def test_an_event_that_cannot_be_is_an_error_and_changes_nothing(event, kind, words):
    searcher = one_bracket(max_trials=20, max_concurrent_trials=12)
    searcher.start()
    searcher.validated(1, 1, 0.5)
    before = seen(searcher)
    with pytest.raises(kind, match=words):
        event(searcher)
    assert seen(searcher) == before
    searcher.validated(0, 1, 0.5)  # trial 0 still waits


def test_numbers_of_numpy_are_taken():
    searcher = one_bracket()
    searcher.start()
    searcher.validated(np.int64(0), np.int32(1), np.float32(0.5))
    assert searcher.states[0] == "paused"


def test_the_next_free_slot_goes_to_the_bracket_that_has_trained_least():
    searcher = make("adaptive_asha", max_length={"epochs": 100}, max_trials=10, max_concurrent_trials=4)
    assert [(o.trial, o.length) for o in searcher.start()] == [(0, 25), (1, 25), (2, 100), (3, 100)]
    assert searcher.next_trial({0, 1, 2, 3}) == 0
    assert searcher.next_trial({1, 2, 3}) == 2  # 25 epochs of the first bracket are under way
    assert searcher.next_trial([1, 3]) == 1
    searcher.validated(0, 25, 0.5)
    searcher.validated(2, 100, 0.5)
    assert searcher.next_trial([1, 3, 4, 5]) == 1
    with pytest.raises(SearcherEventError, match=r"no operation of the trials \[0, 2\]"):
        searcher.next_trial([2, 0])


def test_what_a_caller_does_to_its_configuration_does_not_reach_the_searcher():
    config = {"name": "random", "metric": "loss", "max_length": {"epochs": 9}, "max_trials": 2}
    space = copy.deepcopy(SPACE)
    searcher = create_searcher(config, space)
    config["max_length"]["epochs"] = 1
    space["group"]["b"]["vals"].clear()
    assert searcher.start() == create_searcher({**config, "max_length": {"epochs": 9}}, SPACE).start()[:2]


SEARCHERS = st.one_of(
    st.fixed_dictionaries({"name": st.just("single")}),
    st.fixed_dictionaries({"name": st.just("grid"), "max_concurrent_trials": st.integers(0, 4)}),
    st.fixed_dictionaries(
        {"name": st.just("random"), "max_trials": st.integers(1, 12), "max_concurrent_trials": st.integers(0, 5)}
    ),
    st.fixed_dictionaries(
        {
            "name": st.just("adaptive_asha"),
            "max_trials": st.integers(1, 25),
            "max_concurrent_trials": st.integers(0, 7),
            "mode": st.sampled_from(["aggressive", "standard", "conservative"]),
            "divisor": st.sampled_from([1.5, 2, 3, 4]),
            "max_rungs": st.integers(1, 5),
            "stop_once": st.booleans(),
            "smaller_is_better": st.booleans(),
        },
        optional={"bracket_rungs": st.lists(st.integers(1, 4), min_size=1, max_size=4)},
    ),
)
METRICS = st.sampled_from([0.0, 1.0, -2.0, 0.5, 3.25, -0.0, math.nan, math.inf, -math.inf])


class Watched(Run):
    """Checks every operation against what was promised, and that a twin that takes the same events is the same."""

    def __init__(self, config, seed):
        self.config = config
        self.over = set()
        self.twin = create_searcher({"metric": "loss", "max_length": {"epochs": 30}, **config}, SPACE, seed)
        self.twin.start()
        super().__init__(create_searcher({"metric": "loss", "max_length": {"epochs": 30}, **config}, SPACE, seed))

    def tell(self, trial, event):
        operations = event(self.searcher)
        assert repr(event(self.twin)) == repr(operations)  # as text, since NaN is not equal to itself
        assert seen(self.twin) == seen(self.searcher)
        self.take(operations)

    def take(self, operations):
        created = len(self.reached)
        for operation in operations:
            assert operation.trial not in self.over
            if isinstance(operation, Create):
                assert operation.trial == created
                self.reached[operation.trial] = 0
                created += 1
            elif isinstance(operation, Continue):
                assert operation.length > self.reached[operation.trial] > 0
            else:
                self.over.add(operation.trial)
        super().take(operations)
        self.check()
        return operations

    def check(self):
        config, searcher = self.config, self.searcher
        states = list(searcher.states.values())
        assert {trial for trial, state in searcher.states.items() if state == "running"} == set(self.pending)
        counted = len(states) - (0 if config["name"] in ("single", "grid") else states.count("invalid_hyperparameters"))
        assert counted <= {"single": 1, "grid": 9}.get(config["name"], config.get("max_trials"))
        brackets = len(plan_brackets(searcher.settings)) if config["name"] == "adaptive_asha" else 1
        if config.get("max_concurrent_trials"):
            assert len(self.pending) <= max(config["max_concurrent_trials"], brackets)
        assert searcher.finished == (not self.pending)
        if searcher.finished:
            assert "paused" not in states
            assert counted == {"single": 1, "grid": 9}.get(config["name"], config.get("max_trials"))


@settings(max_examples=80)
@given(st.data(), SEARCHERS, st.integers(0, 3))
def test_any_order_of_events_keeps_the_limits_and_decides_the_same_again(data, config, seed):
    run = Watched(config, seed)
    lengths_asked = set(run.pending.values())
    for step in itertools.count():
        if not run.pending:
            break
        trial = data.draw(st.sampled_from(sorted(run.pending)))
        asked = run.pending.pop(trial)
        lengths_asked.add(asked)
        what = data.draw(st.sampled_from(["validated"] * 6 + ["error", "invalid_hyperparameters"] * (step < 60)))
        if what == "validated":
            metric, length = data.draw(METRICS), asked + data.draw(st.sampled_from([0, 0, 0, 1, 9]))
            run.reached[trial] = length
            run.tell(trial, lambda s, t=trial, n=length, m=metric: s.validated(t, n, m))
        else:
            run.over.update([trial] if what == "error" else [])
            run.tell(trial, lambda s, t=trial, r=what: s.exited(t, r))
    if config["name"] == "adaptive_asha":
        plan = preview({"metric": "loss", "max_length": {"epochs": 30}, **config})
        assert max(plan) == max(lengths_asked | {30}) == 30
