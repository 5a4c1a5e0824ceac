"""Rules of the slots that searches share."""

from __future__ import annotations

import pytest

from lakelens.search.running.places import share_of


@pytest.mark.unit
def test_a_trial_gets_all_its_slots_or_none():
    with share_of("here", lambda: 3, size=2, priority=None, most=None) as share:
        assert share.take() == (0, 1)
        assert share.take() is None
        share.give_back((0, 1))
        assert share.take() == (0, 1)


@pytest.mark.unit
def test_two_searches_share_the_slots_equally_and_the_first_priority_goes_first():
    with (
        share_of("here", lambda: 4, size=1, priority=None, most=None) as first,
        share_of("here", lambda: 4, size=1, priority=None, most=None) as second,
    ):
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
        with share_of("here", lambda: 4, size=1, priority=1, most=None) as urgent:
            urgent.ask(True)
            first.give_back((1,))
            assert (first.take(), second.take(), urgent.take()) == (None, None, (1,))


@pytest.mark.unit
def test_a_search_of_large_trials_is_not_kept_waiting_by_one_of_small_trials():
    with (
        share_of("here", lambda: 2, size=1, priority=None, most=None) as small,
        share_of("here", lambda: 2, size=2, priority=None, most=None) as large,
    ):
        assert (small.take(), small.take()) == ((0,), (1,))
        large.ask(True)
        small.give_back((0,))
        assert small.take() is None
        assert large.take() is None
        small.give_back((1,))
        assert large.take() == (0, 1)


@pytest.mark.unit
def test_a_limit_holds_and_a_search_that_can_never_run_blocks_none():
    with (
        share_of("here", lambda: 3, size=1, priority=None, most=2) as limited,
        share_of("here", lambda: 3, size=4, priority=1, most=None) as too_large,
    ):
        too_large.ask(True)
        assert (limited.take(), limited.take(), limited.take()) == ((0,), (1,), None)
        assert limited.may_keep()


@pytest.mark.unit
def test_searches_that_see_different_numbers_of_slots_are_each_given_as_many_as_they_see():
    with (
        share_of("here", lambda: 2, size=1, priority=None, most=None) as few,
        share_of("here", lambda: 4, size=4, priority=None, most=None) as many,
    ):
        assert (few.take(), few.take(), few.take()) == ((0,), (1,), None)
        many.ask(True)
        few.give_back((0,))
        assert (few.take(), many.take()) == (None, None)
        few.give_back((1,))
        assert many.take() == (0, 1, 2, 3)
        assert few.take() is None


@pytest.mark.unit
def test_slots_that_are_lost_are_not_dealt_out_again():
    there = [2]
    with share_of("here", lambda: there[0], size=1, priority=None, most=None) as share:
        assert (share.take(), share.take()) == ((0,), (1,))
        there[0] = 1
        assert not share.may_keep()
        share.give_back((0,))
        assert share.take() is None
