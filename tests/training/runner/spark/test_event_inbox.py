"""What the driver has heard and not yet taken: what decides goes first, and what is only shown is bounded."""

from __future__ import annotations

import tempfile
import threading

import pytest

from lakelens.training.runner.processes.rank_record import KEPT_LOG_LINES, RankEvent
from lakelens.training.runner.spark.event_inbox import EventInbox
from lakelens.training.runner.spark.skipped_output import SkippedOutput

pytestmark = pytest.mark.unit


def line(rank, number):
    return RankEvent(rank, "line", {"stream": "stdout", "text": str(number)})


def unexpected(event):
    raise AssertionError(f"skipped: {event}")


def shown(inbox):
    found = []
    while (event := inbox.take_shown()) is not None:
        found.append((event.rank, event.data["text"]))
    return found


def test_what_decides_does_not_wait_behind_lines():
    inbox = EventInbox(2, unexpected)
    for number in range(500):
        inbox.put_shown(line(0, number))
    inbox.put("rank 1 has died")
    assert inbox.take(0.0) == ["rank 1 has died"]
    assert inbox.take(0.0) == []
    assert len(shown(inbox)) == 500


def test_lines_come_out_in_the_order_in_which_they_came_from_all_ranks():
    inbox = EventInbox(3, unexpected)
    came = [(number % 3, str(number)) for number in range(100)]
    for rank, number in came:
        inbox.put_shown(line(rank, number))
    assert shown(inbox) == came


def test_of_a_rank_that_floods_the_driver_the_oldest_lines_are_skipped_in_their_order_and_no_others():
    passed = []
    inbox = EventInbox(2, passed.append, most=4 * KEPT_LOG_LINES)
    inbox.put_shown(line(1, "early"))
    for number in range(10_000):
        inbox.put_shown(line(0, number))
    inbox.put_shown(line(1, "late"))
    found = shown(inbox)
    assert [text for rank, text in found if rank == 1] == ["early", "late"]
    kept = [text for rank, text in found if rank == 0]
    assert kept == [str(number) for number in range(10_000 - 2 * KEPT_LOG_LINES, 10_000)]
    assert [(event.rank, event.data["text"]) for event in passed] == [
        (0, str(number)) for number in range(10_000 - len(kept))
    ]


def test_as_many_lines_as_an_error_holds_are_kept_however_many_ranks_there_are():
    inbox = EventInbox(1000, unexpected, most=10)
    for number in range(KEPT_LOG_LINES):
        inbox.put_shown(line(999, number))
    assert len(shown(inbox)) == KEPT_LOG_LINES


def test_who_waits_for_something_is_woken_by_a_line():
    inbox = EventInbox(1, unexpected)
    thread = threading.Thread(target=inbox.take, args=(3600.0,), daemon=True)
    thread.start()
    inbox.put_shown(line(0, 1))
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_what_is_skipped_is_in_a_file_that_the_notice_names(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    skipped = SkippedOutput("train/on photos")
    assert skipped.take_notice() is None
    assert list(tmp_path.iterdir()) == []
    skipped.keep(line(1, 7))
    skipped.keep(RankEvent(0, "message", {"text": "loss \N{GREEK SMALL LETTER ALPHA} \udc80"}))
    (path,) = tmp_path.iterdir()
    assert path.read_text() == "[1]<stdout> 7\nloss \N{GREEK SMALL LETTER ALPHA} \\udc80\n"
    assert path.stat().st_mode & 0o077 == 0
    assert f"2 lines and messages were not shown, and are in {path}" in skipped.take_notice()
    assert skipped.take_notice() is None
    skipped.close()


def test_what_the_disk_does_not_take_is_counted_as_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    skipped = SkippedOutput("train")
    skipped.keep(line(0, 1))
    assert "1 were lost: the folder for temporary files takes no more (" in skipped.take_notice()
    skipped.close()
