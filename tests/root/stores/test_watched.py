"""Waiting for work with an end to it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from lakelens.errors import FeedStalledError
from lakelens.stores.watched import watched, watched_each

pytestmark = pytest.mark.unit


def test_results_come_in_the_order_of_the_items_whatever_ends_first():
    last = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            last.wait(30)
        if item == 9:
            last.set()
        return item * item

    assert list(watched_each(work, range(10), str, threads=2)) == [item * item for item in range(10)]
    assert list(watched_each(work, [], str)) == []


def test_an_error_is_raised_as_what_it_is():
    def work(item: int) -> int:
        if item == 3:
            raise KeyError("three")
        return item

    results = watched_each(work, range(1000), str, threads=1)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="three"):
        next(results)


def test_work_that_does_not_answer_is_an_error_that_names_it():
    never = threading.Event()
    with pytest.raises(FeedStalledError, match=r"the second has not answered for 2 s; .*raise stall_timeout_s"):
        list(
            watched_each(lambda item: item == 1 and never.wait(), [0, 1], ["the first", "the second"].__getitem__, 2.0)
        )
    with pytest.raises(FeedStalledError, match="the store"):
        watched(never.wait, "the store", 0.05)
    never.set()


def test_a_thread_that_hangs_does_not_keep_the_interpreter():
    code = (
        "import threading; from lakelens.stores.watched import watched; from lakelens.errors import FeedStalledError\n"
        "try:\n    watched(threading.Event().wait, 'it', 0.05)\nexcept FeedStalledError:\n    print('stalled')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "stalled\n"
