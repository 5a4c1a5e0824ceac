"""Lines and messages on their way to the user: in order, bounded, and nothing lost."""

from __future__ import annotations

import tempfile
import threading

import pytest

from lakelens.training.runner.output import Output
from lakelens.training.runner.placement.job import Job, Listener
from lakelens.training.runner.processes.rank_record import KEPT_LOG_LINES, RankEvent

pytestmark = pytest.mark.unit


class Screen:
    """Takes what is shown."""

    def __init__(self, size=2, name="train", *, lines=True, most=20_000):
        self.shown, self.recorded, self.notices = [], [], []
        listener = Listener(
            on_line=(lambda rank, stream, text: self.shown.append((rank, text))) if lines else None,
            on_message=lambda text: self.shown.append(text),
            on_notice=self.notices.append,
        )
        job = Job(name=name, size=size, payload=b"", stall_timeout_s=60)
        self.output = Output(job, listener, lambda event: self.recorded.append(event.data["text"]), most)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def line(rank, number):
    return RankEvent(rank, "line", {"stream": "stdout", "text": str(number)})


def test_lines_of_all_ranks_are_shown_in_the_order_in_which_they_came_also_after_a_pause(folder):
    screen = Screen(3)
    came = [(number % 3, str(number)) for number in range(100)]
    for rank, number in came:
        screen.output.put(line(rank, number))
    screen.output.show(0)
    assert (screen.shown, screen.output.waits) == (came[:1], True)
    screen.output.show(60)
    assert (screen.shown, screen.output.waits) == (came, False)
    assert (screen.notices, list(folder.iterdir())) == ([], [])


def test_of_a_rank_that_floods_the_driver_the_oldest_lines_are_skipped_in_their_order_and_no_others(folder):
    screen = Screen(2, most=4 * KEPT_LOG_LINES)
    screen.output.put(line(1, "early"))
    for number in range(10_000):
        screen.output.put(line(0, number))
    screen.output.put(line(1, "late"))
    screen.output.show(60)
    assert [text for rank, text in screen.shown if rank == 1] == ["early", "late"]
    kept = [text for rank, text in screen.shown if rank == 0]
    assert kept == [str(number) for number in range(10_000 - 2 * KEPT_LOG_LINES, 10_000)]
    (path,) = folder.iterdir()
    assert path.read_text().splitlines() == [f"[0]<stdout> {number}" for number in range(10_000 - len(kept))]


def test_lines_that_nobody_wants_are_recorded_and_not_shown(folder):
    screen = Screen(1, lines=False, most=1)
    for number in range(3 * KEPT_LOG_LINES):
        screen.output.put(line(0, number))
    screen.output.show_rest(60)
    assert screen.recorded == [str(number) for number in range(KEPT_LOG_LINES, 3 * KEPT_LOG_LINES)]
    assert (screen.shown, screen.notices, list(folder.iterdir())) == ([], [], [])


def test_what_there_is_no_time_to_show_is_recorded_and_in_a_file_that_the_notice_names(folder):
    screen = Screen(2, "train/on photos")
    screen.output.put(line(1, 7))
    screen.output.put(RankEvent(0, "message", {"text": "loss \N{GREEK SMALL LETTER ALPHA} \udc80"}))
    screen.output.show_rest(0)
    screen.output.close()
    (path,) = folder.iterdir()
    assert path.read_text() == "[1]<stdout> 7\nloss \N{GREEK SMALL LETTER ALPHA} \\udc80\n"
    assert path.stat().st_mode & 0o077 == 0
    assert len(screen.recorded) == 2
    (notice,) = screen.notices
    assert f"2 lines and messages were not shown, and are in {path}" in notice


def test_what_the_disk_does_not_take_is_counted_as_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    screen = Screen(1)
    screen.output.put(line(0, 1))
    screen.output.show_rest(0)
    assert "1 were lost: the folder for temporary files takes no more (" in screen.notices[0]


def test_threads_put_lines_while_another_shows_them():
    screen = Screen(4)
    threads = [
        threading.Thread(target=lambda rank=rank: [screen.output.put(line(rank, n)) for n in range(500)])
        for rank in range(4)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        screen.output.show(0.01)
    screen.output.show_rest(60)
    for rank in range(4):
        assert [text for of, text in screen.shown if of == rank] == [str(number) for number in range(500)]
