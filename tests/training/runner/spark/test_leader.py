"""What rank 0's task tells the client about a job that it leads, without Spark."""

from __future__ import annotations

import io
import pickle
import platform
from dataclasses import replace

import pytest

import lakelens
from lakelens.errors import LaunchError
from lakelens.training.rank.frames import Kind
from lakelens.training.runner.placement.job import Job
from lakelens.training.runner.spark import channel_ranks, leader
from lakelens.training.runner.spark.leader import Leader, address_for
from lakelens.training.runner.spark.task_channel import TaskChannel, TaskPlan

pytestmark = pytest.mark.unit

HELLO = {
    **{"machine": "m", "executor": "e", "python": platform.python_version(), "version": lakelens.__version__},
    **{"problem": None, "gpus": [], "visible_gpus": None},
}
JOB = Job(name="job", size=2, payload=b"", stall_timeout_s=60)
PLAN = TaskPlan(JOB, "", 0, False, lakelens.__version__, 600.0)


def tasks_of(leading, ranks=(0, 1)):
    key = bytes.fromhex(JOB.key)
    hellos = ({**HELLO, "rank": rank, "host": f"host-{rank}"} for rank in ranks)
    return [TaskChannel("127.0.0.1", leading.port, key, hello) for hello in hellos]


def tell(task, kind, **data):
    task.send(Kind.EVENT, {"kind": kind, "data": data})


def test_tasks_meet_at_rank_zeros_host_or_on_loopback_if_all_have_one_host():
    assert address_for(["a", "a"]) == "127.0.0.1"
    assert address_for(["a", "b", "a"]) == "a"


def test_a_task_that_hangs_or_never_reports_makes_rank_zeros_task_end_the_stage(monkeypatch):
    for module in (channel_ranks, leader):
        monkeypatch.setattr(module, "STAGE_END_S", 0.3)
    with Leader(PLAN, "localhost") as leading:
        tasks = tasks_of(leading)
        tell(tasks[1], "raised", type="ValueError", message="boom", traceback="", shown="", consequence=False)
        with pytest.raises(LaunchError, match=r"rank 1 of 2 on host-1 raised ValueError: boom"):
            list(leading.told(io.BytesIO()))
        for task in tasks:
            task.close()
    with Leader(replace(PLAN, reports_within_s=0.5), "localhost") as leading:
        (task,) = tasks_of(leading, ranks=(0,))
        with pytest.raises(LaunchError, match=r"^1 of 2 tasks never reported to rank 0's task within 0\.5 s$"):
            list(leading.told(io.BytesIO()))
        task.close()


def test_what_is_too_large_for_the_client_is_dropped_from_the_oldest_on_and_counted(monkeypatch):
    monkeypatch.setattr(leader, "_KEPT_BYTES", 250)
    monkeypatch.setattr(leader, "PIECE_BYTES", 100)
    with Leader(PLAN, "localhost") as leading:
        tasks = tasks_of(leading)
        for number in range(5):
            tell(tasks[0], "message", text=str(number))
        for task, value in zip(tasks, ({"pickle": 150, "large": []}, {}), strict=True):
            tell(task, "returned", **value)
            tell(task, "ended", exit_code=0, signal=None, peak_bytes=None)
            tell(task, "gone")
            task.close()
        rows = list(leading.told(io.BytesIO(bytes(150))))
    told = rows.index(b"")
    outcome, pieces = pickle.loads(b"".join(rows[:told])), rows[told + 1 :]
    assert ([event.data["text"] for event in outcome.events], pieces) == (["3", "4"], [bytes(100), bytes(50)])
    assert [notice for notice in outcome.notices if "the oldest 3 lines and messages of ranks were dropped" in notice]
    assert max(map(len, rows)) == 100
