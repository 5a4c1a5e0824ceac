"""What the driver has heard and not yet taken: what decides goes first, and what is only shown is bounded."""

from __future__ import annotations

import threading

import pytest

from lakelens.training.inbox import Inbox
from lakelens.training.outcome import KEPT_LOG_LINES, RankEvent

pytestmark = pytest.mark.unit


def line(rank, number):
    return RankEvent(rank, "line", {"stream": "stdout", "text": str(number)})


def shown(inbox):
    found = []
    while (event := inbox.take_shown()) is not None:
        found.append((event.rank, event.data["text"]))
    return found


def test_what_decides_does_not_wait_behind_lines():
    inbox = Inbox(2)
    for number in range(500):
        inbox.put_shown(line(0, number))
    inbox.put("rank 1 has died")
    assert inbox.take(0.0) == ["rank 1 has died"]
    assert inbox.take(0.0) == []
    assert len(shown(inbox)) == 500


def test_lines_come_out_in_the_order_in_which_they_came_from_all_ranks():
    inbox = Inbox(3)
    came = [(number % 3, str(number)) for number in range(100)]
    for rank, number in came:
        inbox.put_shown(line(rank, number))
    assert shown(inbox) == came
    assert inbox.take_dropped() == 0


def test_a_rank_that_floods_the_driver_loses_its_oldest_lines_and_no_other_rank_any():
    inbox = Inbox(2, most=4 * KEPT_LOG_LINES)
    inbox.put_shown(line(1, "early"))
    for number in range(10_000):
        inbox.put_shown(line(0, number))
    inbox.put_shown(line(1, "late"))
    found = shown(inbox)
    assert [text for rank, text in found if rank == 1] == ["early", "late"]
    kept = [text for rank, text in found if rank == 0]
    assert kept == [str(number) for number in range(10_000 - 2 * KEPT_LOG_LINES, 10_000)]
    assert inbox.take_dropped() == 10_000 - len(kept)
    assert inbox.take_dropped() == 0


def test_as_many_lines_as_an_error_holds_are_kept_however_many_ranks_there_are():
    inbox = Inbox(1000, most=10)
    for number in range(KEPT_LOG_LINES):
        inbox.put_shown(line(999, number))
    assert len(shown(inbox)) == KEPT_LOG_LINES


def test_who_waits_for_something_is_woken_by_a_line():
    inbox = Inbox(1)
    thread = threading.Thread(target=inbox.take, args=(3600.0,), daemon=True)
    thread.start()
    inbox.put_shown(line(0, 1))
    thread.join(timeout=60)
    assert not thread.is_alive()
