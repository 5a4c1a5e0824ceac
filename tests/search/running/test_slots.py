"""Rules of the slots that searches share."""

from __future__ import annotations

from typing import Any

import pytest

from lakelens.search.running.places import share_of

pytestmark = pytest.mark.unit


def share(slots: int, size: int = 1, priority: int | None = None, most: int | None = None) -> Any:
    """The share of a search that sees a number of slots."""
    return share_of("here", lambda: slots, size=size, priority=priority, most=most)


def test_a_trial_gets_all_its_slots_or_none():
    with share(3, size=2) as pairs:
        assert pairs.take() == (0, 1)
        assert pairs.take() is None
        pairs.give_back((0, 1))
        assert pairs.take() == (0, 1)


def test_two_searches_share_the_slots_equally_and_the_first_priority_goes_first():
    with share(4) as first, share(4) as second:
        taken = [first.take() for _ in range(3)]
        assert taken == [(0,), (1,), (2,)]
        second.ask(True)
        assert first.take() is None  # the second holds fewer
        assert second.take() == (3,)
        assert not first.may_keep()
        first.give_back((0,))
        assert first.take() is None
        assert second.take() == (0,)
        assert first.may_keep()
        with share(4, priority=1) as urgent:
            urgent.ask(True)
            first.give_back((1,))
            assert (first.take(), second.take(), urgent.take()) == (None, None, (1,))


def test_a_search_of_large_trials_is_not_kept_waiting_by_one_of_small_trials():
    with share(2) as small, share(2, size=2) as large:
        assert (small.take(), small.take()) == ((0,), (1,))
        large.ask(True)
        small.give_back((0,))
        assert small.take() is None
        assert large.take() is None
        small.give_back((1,))
        assert large.take() == (0, 1)


def test_a_limit_holds_and_a_search_that_can_never_run_blocks_none():
    with share(3, most=2) as limited, share(3, size=4, priority=1) as too_large:
        too_large.ask(True)
        assert (limited.take(), limited.take(), limited.take()) == ((0,), (1,), None)
        assert limited.may_keep()


def test_searches_that_see_different_numbers_of_slots_are_each_given_as_many_as_they_see():
    with share(2) as few, share(4, size=4) as many:
        assert (few.take(), few.take(), few.take()) == ((0,), (1,), None)
        many.ask(True)
        few.give_back((0,))
        assert (few.take(), many.take()) == (None, None)
        few.give_back((1,))
        assert many.take() == (0, 1, 2, 3)
        assert few.take() is None


def test_slots_that_are_lost_are_not_dealt_out_again():
    there = [2]
    with share_of("here", lambda: there[0], size=1, priority=None, most=None) as lost:
        assert (lost.take(), lost.take()) == ((0,), (1,))
        there[0] = 1
        assert not lost.may_keep()
        lost.give_back((0,))
        assert lost.take() is None
