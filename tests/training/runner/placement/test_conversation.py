"""What ranks and driver say to each other, part by part."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from lakelens.errors import LaunchError
from lakelens.training.rank import process_context
from lakelens.training.rank.driver_line import DriverLine
from lakelens.training.rank.frames import MAX_SAID_BYTES, FrameReader, Kind, pack, said
from lakelens.training.runner.placement import conversation as conversation_module
from lakelens.training.runner.placement.conversation import Controls, Conversation
from lakelens.training.runner.processes.failure_verdict import JobRecord
from lakelens.training.runner.processes.rank_process import RankProcess
from lakelens.training.runner.processes.rank_record import RankEvent

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
    theirs.sendall(ASSIGN)
    line = DriverLine(ours)
    assert line.assignment() == {"rank": 0}
    yield line, Launcher(theirs)
    ours.close()
    theirs.close()


# --- the rank's end ---------------------------------------------------------------------------------------------------


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


def test_what_was_told_is_kept_until_the_rank_looks_and_the_latest_value_of_a_key_counts(ends):
    line, launcher = ends
    assert line.told() == {}
    launcher.tell({"pause": False, "until": 10})
    launcher.tell({"pause": True})
    assert line.told() == {"pause": True, "until": 10}
    assert line.told() == {"pause": True, "until": 10}


def test_what_arrives_together_with_the_assignment_is_kept():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(ASSIGN + pack(Kind.TELL, said("what is told", {"pause": True})))
        line = DriverLine(ours)
        assert line.assignment() == {"rank": 0}
        assert line.told() == {"pause": True}


def test_looking_at_what_was_told_does_not_wait_for_another_threads_answer(ends):
    line, launcher = ends
    thread = threading.Thread(target=line.ask, args=({},), daemon=True)
    thread.start()
    ((number, _),) = launcher.questions(1)
    assert line.told() == {}
    launcher.tell({"pause": True})
    launcher.answer(number, {})
    thread.join(timeout=60)
    assert line.told() == {"pause": True}


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
    assert line.told() == {}


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (pack(Kind.TELL, b"[1]"), "holds list, not an object"),
        (pack(Kind.TELL, {"body": {}}), "lacks its number or its object"),
        (pack(Kind.ANSWER, {"number": 1, "body": [1]}), "lacks its number or its object"),
        (pack(Kind.END), "a rank cannot receive a frame of kind"),
        (struct.pack(">BI", Kind.TELL, 0xFFFFFFFF), "announces 4294967295 bytes"),
    ],
    ids=["list", "number", "body", "kind", "size"],
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


# --- the launcher's end -----------------------------------------------------------------------------------------------


def test_what_a_rank_does_not_read_stops_nobody_and_arrives_whole_when_it_does():
    process = object.__new__(RankProcess)
    process._unsent = bytearray()
    process.line, theirs = socket.socketpair()
    process.line.setblocking(False)
    with process.line, theirs:
        theirs.settimeout(60)
        bodies = [{"number": number, "text": "x" * 400_000} for number in range(5)]
        for body in bodies:
            process.send(Kind.TELL, body)
        reader, frames = FrameReader(), []
        while len(frames) < 5:
            frames += list(reader.feed(theirs.recv(65536)))
            process.flush()
        assert [frame.json() for frame in frames] == bodies


# --- the driver's part ------------------------------------------------------------------------------------------------


class Ranks:
    """Takes what the driver sends."""

    def __init__(self) -> None:
        self.got: list[tuple[int, str, dict]] = []

    def send(self, rank, kind, body):
        (frame,) = FrameReader().feed(pack(kind, body))
        self.got.append((rank, kind.name, frame.said()[1]))

    def take(self):
        got, self.got = self.got, []
        return got


def asked(rank, number, **body):
    return RankEvent(rank, "asked", {"number": number, "body": body})


def test_questions_are_answered_in_the_order_in_which_they_came_and_by_the_waiting_thread_only():
    ranks, heard = Ranks(), []

    def on_question(rank, body):
        heard.append((rank, body, threading.get_ident()))
        return {"is": len(heard)}

    talk = Conversation(2, on_question, Controls(), ranks.send)
    for rank in (1, 0, 1):
        talk.hear(asked(rank, 1, step=rank))
    assert (heard, ranks.take()) == ([], [])
    talk.reply()
    assert [(rank, body) for rank, body, _ in heard] == [(1, {"step": 1}), (0, {"step": 0}), (1, {"step": 1})]
    assert {thread for *_, thread in heard} == {threading.get_ident()}
    assert ranks.take() == [(1, "ANSWER", {"is": 1}), (0, "ANSWER", {"is": 2}), (1, "ANSWER", {"is": 3})]


def test_a_question_is_answered_with_nothing_when_nobody_listens():
    ranks = Ranks()
    talk = Conversation(1, None, Controls(), ranks.send)
    talk.hear(asked(0, 7))
    talk.reply()
    assert ranks.take() == [(0, "ANSWER", {})]


def test_what_is_told_reaches_every_rank_once_in_each_start_and_before_the_answer_that_follows_it():
    ranks, controls = Ranks(), Controls()

    def on_question(rank, body):
        controls.tell({"pause": True})
        return {}

    controls.tell({"until": 5})
    first = Conversation(2, on_question, controls, ranks.send)
    first.hear(asked(1, 1))
    first.reply()
    told = [(0, "TELL", {"until": 5}), (1, "TELL", {"until": 5}), (0, "TELL", {"pause": True})]
    told.append((1, "TELL", {"pause": True}))
    assert ranks.take() == [*told, (1, "ANSWER", {})]
    first.reply()
    assert ranks.take() == []
    Conversation(2, on_question, controls, ranks.send).reply()
    assert ranks.take() == told


@pytest.mark.parametrize(("answer", "words"), [(None, "of type NoneType"), ({"a": {1}}, "Object of type set")])
def test_an_answer_that_cannot_be_sent_is_an_error_of_the_driver(answer, words):
    talk = Conversation(1, lambda rank, body: answer, Controls(), Ranks().send)
    talk.hear(asked(0, 1))
    with pytest.raises(LaunchError, match=f"the answer to a rank's question .*{words}"):
        talk.reply()


def test_what_cannot_be_told_is_an_error_of_who_tells_it():
    controls = Controls()
    with pytest.raises(LaunchError, match="a message to ranks is of type list"):
        controls.tell([1])
    assert controls.since(0) == []


def test_while_the_driver_thinks_no_rank_stalls_and_one_that_never_comes_afterwards_does(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(conversation_module.time, "monotonic", lambda: clock[0])

    def on_question(rank, body):
        clock[0] += 500.0
        return {}

    talk, record = Conversation(2, on_question, Controls(), Ranks().send), JobRecord(2, 60.0)

    def rank_one_waits():
        record.record(RankEvent(1, "progress", {"entered": 1, "left": 0}), talk.now())
        return record.failure(talk.now())

    for rank in (0, 1):
        record.record(RankEvent(rank, "joined"), talk.now())
    assert rank_one_waits() is None
    talk.hear(asked(0, 1))
    talk.reply()
    assert rank_one_waits() is None
    clock[0] += 40.0
    assert rank_one_waits() is None
    clock[0] += 20.0
    found = rank_one_waits()
    assert (found.rank, found.reason) == (0, "stalled")
