"""A rank's end of its line to the launcher."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from lakelens.errors import LaunchError
from lakelens.training.rank import process_context
from lakelens.training.rank.driver_line import DriverLine
from lakelens.training.rank.frames import MAX_SAID_BYTES, FrameReader, Kind, pack, said

pytestmark = pytest.mark.unit

ASSIGN = pack(Kind.ASSIGN, {"rank": 0})


class Launcher:
    """The other end of a rank's line."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._reader = FrameReader()

    def questions(self, count: int) -> list[tuple[int, dict]]:
        found: list[tuple[int, dict]] = []
        while len(found) < count:
            for frame in self._reader.feed(self.socket.recv(65536)):
                assert frame.kind == Kind.ASK
                found.append(frame.said())
        return found

    def answer(self, number: int, body: dict) -> None:
        self.socket.sendall(pack(Kind.ANSWER, said("an answer", body, number)))

    def tell(self, body: dict) -> None:
        self.socket.sendall(pack(Kind.TELL, said("what is told", body)))


@pytest.fixture
def ends() -> Iterator[tuple[DriverLine, Launcher]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(60)
    theirs.sendall(ASSIGN + pack(Kind.TELL, said("what is told", {"until": 10})))
    line = DriverLine(ours)
    assert line.assignment() == {"rank": 0}
    yield line, Launcher(theirs)
    ours.close()
    theirs.close()


def test_threads_that_ask_at_the_same_time_each_get_their_own_answer(ends):
    line, launcher = ends
    got: dict[int, dict] = {}

    def ask(name):
        got[name] = line.ask({"name": name})

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in range(8)]
    for thread in threads:
        thread.start()
    for number, body in reversed(launcher.questions(8)):
        launcher.answer(number, {"to": body["name"]})
    for thread in threads:
        thread.join(timeout=60)
    assert got == {name: {"to": name} for name in range(8)}


def test_what_was_told_is_kept_and_looking_at_it_does_not_wait_for_another_threads_answer(ends):
    line, launcher = ends
    thread = threading.Thread(target=line.ask, args=({},), daemon=True)
    thread.start()
    ((number, _),) = launcher.questions(1)
    assert line.told() == {"until": 10}  # which came together with the assignment
    launcher.tell({"pause": False, "until": 20})
    launcher.answer(number, {})
    thread.join(timeout=60)  # it has read what was told before its answer
    launcher.tell({"pause": True})
    assert line.told() == line.told() == {"pause": True, "until": 20}


def test_who_asks_on_a_closed_line_or_loses_it_meanwhile_gets_an_error(ends):
    line, launcher = ends
    raised = []

    def ask():
        try:
            line.ask({})
        except LaunchError as error:
            raised.append(str(error))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    launcher.questions(2)
    launcher.socket.close()
    for thread in threads:
        thread.join(timeout=60)
    ask()
    assert raised == ["the driver does not answer: the line to the launcher is closed"] * 3
    assert line.told() == {"until": 10}


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (pack(Kind.TELL, b"[1]"), "holds list, not an object"),
        (pack(Kind.TELL, {"body": {}}), "lacks its number or its object"),
        (pack(Kind.ANSWER, {"number": 1, "body": [1]}), "lacks its number or its object"),
        (pack(Kind.END), "a rank cannot receive a frame of kind"),
    ],
    ids=["list", "number", "body", "kind"],
)
def test_a_frame_that_is_none_ends_the_line_with_the_rule(ends, sent, words):
    line, launcher = ends
    launcher.socket.sendall(sent)
    with pytest.raises(LaunchError, match=words):
        line.ask({})
    with pytest.raises(LaunchError, match="the line to the launcher is closed"):
        line.ask({})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([1], "a question to the driver is of type list; it must be a dict of JSON values"),
        ({"loss": 1j}, r"must be a dict of JSON values \(Object of type complex is not JSON"),
        ({"text": "x" * MAX_SAID_BYTES}, f"takes {MAX_SAID_BYTES + 35} bytes as JSON; at most {MAX_SAID_BYTES} are"),
    ],
    ids=["list", "complex", "size"],
)
def test_what_cannot_be_asked_is_refused_before_it_is_sent(ends, body, words):
    line, launcher = ends
    with pytest.raises(LaunchError, match=words):
        line.ask(body)
    launcher.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        launcher.socket.recv(1)


def test_outside_a_job_nobody_answers_and_nothing_is_told():
    assert (process_context.ask({"validation": 1}), process_context.told()) == ({}, {})
