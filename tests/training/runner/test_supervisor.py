"""What the supervisor does with a failure, wherever ranks run: ranks that follow a script instead of processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lakelens.errors import ClusterConfigurationError, LaunchError, RankFailedError
from lakelens.training.runner.placement.job import Job, Listener
from lakelens.training.runner.processes import failure_verdict
from lakelens.training.runner.processes.rank_record import RankEvent
from lakelens.training.runner.supervisor import Ranks, Supervisor

pytestmark = pytest.mark.unit

LOST = RankEvent(1, "lost", {"reason": "lost contact"})


class Scripted(Ranks):
    """Ranks that report the same events in each step, and note whose stacks are wanted at their end."""

    reachable, ended = True, False

    def __init__(self, *events: RankEvent, known: LaunchError | str | None = None) -> None:
        self.events, self.known = events, known
        self.stacks_of: list[int] | None = None

    @contextlib.contextmanager
    def start(self, supervisor: Supervisor) -> Iterator[Scripted]:
        self.supervisor = supervisor
        yield self

    def step(self, timeout_s):
        for event in self.events:
            self.supervisor.hear(event)

    def explain(self, failure):
        if isinstance(self.known, str):
            return replace(failure, sentence=f"{failure.sentence} ({self.known})")
        return self.known or failure

    def end(self, stacks_of):
        self.stacks_of = list(stacks_of)


def error_of(ranks: Scripted, monkeypatch: pytest.MonkeyPatch) -> LaunchError:
    """The error of a job whose evidence counts at once."""
    monkeypatch.setattr(failure_verdict, "SETTLE_PRIMARY_S", 0.0)
    listener = Listener(on_line=None, on_message=print, on_notice=print)
    job = Supervisor(Job(name="train", size=2, payload=b"", stall_timeout_s=60), listener)
    job.record.patience_s = 0.0
    with pytest.raises(LaunchError) as caught:
        job.run(ranks.start)
    return caught.value


def test_a_stalled_rank_shows_its_stacks_before_it_ends(monkeypatch):
    joined = (RankEvent(rank, "joined") for rank in (0, 1))
    ranks = Scripted(*joined, RankEvent(0, "progress", {"entered": 1, "left": 0}))
    error = error_of(ranks, monkeypatch)
    assert (error.rank, error.reason, ranks.stacks_of) == (1, "stalled", [1])


def test_what_the_starter_knows_of_a_failure_is_in_the_error_or_replaces_it(monkeypatch):
    ranks = Scripted(LOST, known="Spark says: killed")
    error = error_of(ranks, monkeypatch)
    assert (type(error), ranks.stacks_of) == (RankFailedError, [])
    assert "lost contact (Spark says: killed)" in str(error)
    known = ClusterConfigurationError("another Python")
    assert error_of(Scripted(LOST, known=known), monkeypatch) is known
