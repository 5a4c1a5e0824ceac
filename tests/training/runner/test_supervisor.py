"""What the supervisor does with ranks, wherever they run: ranks that follow a script instead of processes."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from lakelens.errors import ClusterConfigurationError, LaunchError, RankFailedError
from lakelens.training.rank.frames import Kind
from lakelens.training.runner.placement.conversation import Controls
from lakelens.training.runner.placement.job import Job, Listener
from lakelens.training.runner.processes import failure_verdict
from lakelens.training.runner.processes.rank_record import RankEvent
from lakelens.training.runner.supervisor import Supervisor

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Evidence counts at once."""
    monkeypatch.setattr(failure_verdict, "SETTLE_PRIMARY_S", 0.0)
    monkeypatch.setattr(failure_verdict, "SETTLE_CONSEQUENCE_S", 0.0)


class Scripted:
    """Ranks that report one list of events in each step, and note what is wanted of them."""

    def __init__(self, *script, known=None, reachable_after=0):
        self.script, self.known, self.done = list(script), known, []
        self._steps, self._reachable_after = 0, reachable_after

    @contextlib.contextmanager
    def start(self, supervisor):
        self.supervisor = supervisor
        try:
            yield self
        finally:
            self.done.append("left")

    @property
    def reachable(self):
        return self._steps > self._reachable_after

    @property
    def ended(self):
        return not self.script

    def step(self, timeout_s):
        self._steps += 1
        for event in self.script.pop(0):
            self.supervisor.hear(event)

    def send(self, rank, kind, body):
        self.done.append((kind.name, rank))

    def close_stores(self):
        self.done.append("stores closed")

    def explain(self, failure):
        if isinstance(self.known, str):
            return replace(failure, sentence=f"{failure.sentence} ({self.known})")
        return self.known or failure

    def end(self, stacks_of):
        self.done.append(("ended", list(stacks_of)))

    def value(self):
        if not self.supervisor.record.all_returned:
            raise LaunchError("not all have returned")
        return "value"


def supervisor(size=2, **options):
    shown = []
    listener = Listener(
        on_line=lambda rank, stream, text: shown.append((rank, text)),
        on_message=shown.append,
        on_notice=shown.append,
        **options,
    )
    found = Supervisor(Job(name="train", size=size, payload=b"", stall_timeout_s=60), listener)
    found.shown = shown
    return found


def every(kind, **data):
    return [RankEvent(rank, kind, data) for rank in (0, 1)]


def line(rank, text):
    return RankEvent(rank, "line", {"stream": "stdout", "text": text})


def raised(rank):
    told = {"type": "ValueError", "message": "boom", "traceback": "", "consequence": False}
    return RankEvent(rank, "raised", {**told, "shown": f"Traceback of {rank}"})


def test_a_job_whose_ranks_return_gives_the_value_and_ends_nothing():
    ranks = Scripted(every("joining"), every("joined"), [line(1, "last")], every("returned"))
    job = supervisor()
    assert job.run(ranks.start) == "value"
    assert ranks.done == ["stores closed", "left"]
    assert job.shown == [(1, "last")]


def test_the_first_rank_that_raised_is_to_blame_and_all_end_before_the_error_is_raised():
    ranks = Scripted([line(1, "about to fail"), raised(1), raised(0)], [])
    with pytest.raises(RankFailedError, match="Traceback of 1") as caught:
        supervisor().run(ranks.start)
    assert (caught.value.rank, caught.value.reason, caught.value.log) == (1, "raised", ["about to fail"])
    assert ranks.done == [("ended", []), "left"]
    assert caught.value.__suppress_context__


def test_a_stalled_rank_shows_its_stacks_before_it_ends():
    waiting = RankEvent(0, "progress", {"entered": 1, "left": 0})
    ranks = Scripted([*every("joined"), waiting], [waiting], [])
    job = supervisor()
    job.record.patience_s = 0.0
    with pytest.raises(RankFailedError) as caught:
        job.run(ranks.start)
    assert (caught.value.rank, caught.value.reason) == (1, "stalled")
    assert ("ended", [1]) in ranks.done


def test_what_the_starter_knows_of_a_failure_is_in_the_error_or_replaces_it():
    lost = RankEvent(1, "lost", {"reason": "lost contact"})
    with pytest.raises(RankFailedError, match=r"lost contact \(Spark says: executor 3 was killed\)"):
        supervisor().run(Scripted([lost], [], known="Spark says: executor 3 was killed").start)
    ranks = Scripted([lost], [], known=ClusterConfigurationError("another Python"))
    with pytest.raises(ClusterConfigurationError, match="another Python"):
        supervisor().run(ranks.start)
    assert ranks.done == [("ended", []), "left"]


def test_questions_wait_until_every_rank_can_be_reached_and_ranks_that_have_ended_get_no_answer():
    asked = [RankEvent(rank, "asked", {"number": 1, "body": {}}) for rank in (0, 1)]
    controls = Controls()
    controls.tell({"until": 5})
    ranks = Scripted(asked, [], every("returned"), reachable_after=1)
    supervisor(controls=controls).run(ranks.start)
    told = [(Kind.TELL.name, 0), (Kind.TELL.name, 1), (Kind.ANSWER.name, 0), (Kind.ANSWER.name, 1)]
    assert ranks.done[:4] == told
    early = Scripted([asked[0], RankEvent(0, "returned", {})], [RankEvent(1, "returned", {})])
    supervisor().run(early.start)
    assert early.done == ["left"]


def test_an_error_of_the_driver_ends_the_job_as_it_is():
    def broken(rank, body):
        raise KeyError(body["step"])

    ranks = Scripted([line(0, "asks"), RankEvent(0, "asked", {"number": 1, "body": {"step": 7}})], [])
    job = supervisor(on_question=broken)
    with pytest.raises(KeyError, match="7"):
        job.run(ranks.start)
    assert ranks.done == ["left"]
    assert job.shown == [(0, "asks")]


def test_ranks_that_end_without_a_report_are_an_error_of_the_starter_after_their_lines():
    job = supervisor()
    with pytest.raises(LaunchError, match="not all have returned"):
        job.run(Scripted([line(0, "one")]).start)
    assert job.shown == [(0, "one")]
