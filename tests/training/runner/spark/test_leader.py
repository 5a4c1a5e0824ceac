"""What rank 0's task tells the client about a job that it leads, without Spark."""

from __future__ import annotations

import io
import pickle

import pytest

import lakelens
from lakelens.errors import ClusterConfigurationError, LaunchError, RankFailedError
from lakelens.training.rank.frames import Kind
from lakelens.training.runner.placement.job import Job
from lakelens.training.runner.processes.rank_record import RankEvent
from lakelens.training.runner.spark import channel_ranks, leader
from lakelens.training.runner.spark.leader import Leader, address_for
from lakelens.training.runner.spark.task_channel import TaskChannel, TaskPlan

pytestmark = pytest.mark.unit

HELLO = {"machine": "m", "executor": "e", "python": "3.12.1", "version": lakelens.__version__, "problem": None}
RAISED = {
    "type": "ValueError",
    "message": "boom",
    "traceback": "Traceback ...\nValueError: boom",
    "shown": "Traceback of the user\nValueError: boom",
    "consequence": False,
}


def plan(version=lakelens.__version__, reports_within_s=600.0):
    return TaskPlan(Job(name="job", size=2, payload=b"", stall_timeout_s=60), "", 0, False, version, reports_within_s)


def tasks_of(leading, job, python):
    hello = {**HELLO, "python": python, "gpus": [], "visible_gpus": None}
    return [
        TaskChannel("127.0.0.1", leading.port, bytes.fromhex(job.key), {**hello, "rank": rank, "host": f"host-{rank}"})
        for rank in (0, 1)
    ]


def tell(task, kind, **data):
    task.send(Kind.EVENT, {"kind": kind, "data": data})


def end(tasks, exit_code=0, **value):
    """Ends the ranks of all tasks; with a value they have returned."""
    for rank, task in enumerate(tasks):
        if value:
            tell(task, "returned", **(value if rank == 0 else {}))
        tell(task, "ended", exit_code=exit_code, signal=None, peak_bytes=None)
        tell(task, "gone")
        if value:
            task.close()


def parted(rows):
    rows = list(rows)
    told = rows.index(b"")
    return pickle.loads(b"".join(rows[:told])), rows[told + 1 :]


@pytest.fixture
def python():
    import platform

    return platform.python_version()


def test_tasks_meet_at_rank_zeros_host_or_on_loopback_if_all_have_one_host():
    assert address_for(["a", "a"]) == "127.0.0.1"
    assert address_for(["a", "b", "a"]) == "a"


def test_the_value_follows_the_messages_and_last_lines(python):
    with Leader(plan(), "localhost") as leading:
        tasks = tasks_of(leading, leading._plan.job, python)
        tell(tasks[0], "message", text="said")
        tell(tasks[1], "line", stream="stdout", text="written")
        end(tasks, pickle=3, large=[])
        outcome, pieces = parted(leading.told(io.BytesIO(b"abc")))
    assert (outcome.error, outcome.value, pieces) == (None, {"pickle": 3, "large": []}, [b"abc"])
    assert {(event.kind, event.data["text"]) for event in outcome.events} == {("message", "said"), ("line", "written")}
    assert RankEvent(1, "line", {"stream": "stdout", "text": "written"}) in outcome.events


def test_a_failure_arrives_as_the_error_that_a_driver_raises(python):
    with Leader(plan(), "localhost") as leading:
        tasks = tasks_of(leading, leading._plan.job, python)
        tell(tasks[1], "raised", **RAISED)
        end(tasks, exit_code=1)
        outcome, _ = parted(leading.told(io.BytesIO()))
        for task in tasks:
            task.close()
    error = outcome.error
    assert isinstance(error, RankFailedError)
    assert (error.rank, error.host, error.reason, error.traceback) == (1, "host-1", "raised", RAISED["traceback"])
    assert str(error).startswith(RAISED["shown"])


def test_a_task_that_hangs_makes_rank_zeros_task_end_the_stage(monkeypatch, python):
    for module in (channel_ranks, leader):
        monkeypatch.setattr(module, "STAGE_END_S", 0.3)
    with Leader(plan(), "localhost") as leading:
        tasks = tasks_of(leading, leading._plan.job, python)
        tell(tasks[1], "raised", **RAISED)
        with pytest.raises(LaunchError, match=r"rank 1 of 2 on host-1 raised ValueError: boom"):
            list(leading.told(io.BytesIO()))
        for task in tasks:
            task.close()


def test_a_task_that_never_reports_makes_rank_zeros_task_end_the_stage(monkeypatch, python):
    for module in (channel_ranks, leader):
        monkeypatch.setattr(module, "STAGE_END_S", 0.3)
    with Leader(plan(reports_within_s=0.5), "localhost") as leading:
        task = TaskChannel(
            "127.0.0.1",
            leading.port,
            bytes.fromhex(leading._plan.job.key),
            {**HELLO, "python": python, "gpus": [], "visible_gpus": None, "rank": 0, "host": "host-0"},
        )
        with pytest.raises(LaunchError, match=r"^1 of 2 tasks never reported to rank 0's task within 0\.5 s$"):
            list(leading.told(io.BytesIO()))
        task.close()


def test_executors_with_another_lakelens_than_the_client_are_refused(python):
    with Leader(plan(version="0.0.1"), "localhost") as leading:
        tasks = tasks_of(leading, leading._plan.job, python)
        for task in tasks:
            tell(task, "gone")
        outcome, _ = parted(leading.told(io.BytesIO()))
        for task in tasks:
            task.close()
    error = outcome.error
    assert isinstance(error, ClusterConfigurationError)
    assert f"has lakelens {lakelens.__version__}, the driver 0.0.1" in str(error)


def test_what_is_too_large_for_the_client_is_dropped_from_the_oldest_on_and_counted(monkeypatch, python):
    monkeypatch.setattr(leader, "_KEPT_BYTES", 250)
    monkeypatch.setattr(leader, "PIECE_BYTES", 100)
    with Leader(plan(), "localhost") as leading:
        tasks = tasks_of(leading, leading._plan.job, python)
        for number in range(5):
            tell(tasks[0], "message", text=str(number))
        end(tasks, pickle=150, large=[])
        rows = list(leading.told(io.BytesIO(bytes(150))))
    outcome, pieces = parted(rows)
    assert ([event.data["text"] for event in outcome.events], pieces) == (["3", "4"], [bytes(100), bytes(50)])
    assert [notice for notice in outcome.notices if "the oldest 3 lines and messages of ranks were dropped" in notice]
    assert max(map(len, rows)) == 100
