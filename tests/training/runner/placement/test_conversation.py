"""The driver's part in the messages between ranks and driver."""

from __future__ import annotations

import pytest

from lakelens.errors import LaunchError
from lakelens.training.rank.frames import FrameReader, pack
from lakelens.training.runner.placement import conversation as conversation_module
from lakelens.training.runner.placement.conversation import Controls, Conversation
from lakelens.training.runner.processes.failure_verdict import JobRecord
from lakelens.training.runner.processes.rank_record import RankEvent

pytestmark = pytest.mark.unit


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
def test_what_cannot_be_answered_or_told_is_an_error_of_the_driver(answer, words):
    talk = Conversation(1, lambda rank, body: answer, Controls(), Ranks().send)
    talk.hear(asked(0, 1))
    with pytest.raises(LaunchError, match=f"the answer to a rank's question .*{words}"):
        talk.reply()
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
