"""The body of a barrier task against a driver's channel, without Spark."""

from __future__ import annotations

import pickle
import queue
import socket
import threading
from dataclasses import replace

import pytest

import lakelens
from lakelens.errors import ClusterConfigurationError, LaunchError
from lakelens.training.rank.frames import Kind
from lakelens.training.runner.function_pickle import pickle_function
from lakelens.training.runner.placement.job import Job, assignment, place
from lakelens.training.runner.processes.failure_verdict import SETTLE_PRIMARY_S, JobRecord
from lakelens.training.runner.processes.rank_record import RankEvent
from lakelens.training.runner.spark import barrier_task
from lakelens.training.runner.spark.barrier_task import _led, _Task
from lakelens.training.runner.spark.driver_channel import DriverChannel
from lakelens.training.runner.spark.task_channel import TaskPlan

pytestmark = pytest.mark.unit


def test_a_task_that_finds_no_interface_for_its_rank_tells_the_driver_so(monkeypatch):
    def none(address):
        raise LaunchError(f"no network interface of this machine has the address {address}")

    monkeypatch.setattr(barrier_task, "interface_of", none)
    job = Job(name="train", size=2, payload=pickle_function(lambda: None, {}), stall_timeout_s=60)
    record, heard = JobRecord(job.size, job.stall_timeout_s), queue.SimpleQueue()
    channel = DriverChannel(
        job.size, bytes.fromhex(job.key), "127.0.0.1", 0, lambda *told: heard.put(told), lambda rank, rule: None
    )

    def drive():
        heard.get(timeout=60)
        place_of_rank = assignment(job, place(["a", "b"])[0], {})
        channel.send(0, Kind.ASSIGN, {**place_of_rank, "single_host": False})
        while not record.ranks[0].gone:
            rank, frame = heard.get(timeout=60)
            if frame.kind == Kind.EVENT:
                told = frame.json()
                record.record(RankEvent(rank, told["kind"], told["data"]), 1.0)
        channel.send_all(Kind.END, {"dump": []})

    driver = threading.Thread(target=drive, daemon=True)
    driver.start()
    try:
        task = _Task(
            TaskPlan(replace(job, payload=b""), "127.0.0.1", channel.port, True, lakelens.__version__, 60.0), 0, "a", []
        )
        with pytest.raises(LaunchError, match="rank 0 on a did not finish"):
            list(task.run(job.payload))
        driver.join(timeout=60)
    finally:
        channel.close()
    failure = record.failure(1.0 + 2 * SETTLE_PRIMARY_S)
    assert (failure.rank, failure.reason) == (0, "raised")
    assert "no network interface of this machine has the address 127.0.0.1" in str(record.error(failure))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_task_that_waits_for_one_that_hangs_before_they_meet_ends_the_stage(rank):
    job, never = Job(name="train", size=2, payload=b"", stall_timeout_s=60), threading.Event()
    plan = TaskPlan(job, "", 0, False, lakelens.__version__, 0.5)
    with pytest.raises(LaunchError, match=r"a task never reported to the others within 0\.5 s"):
        list(_led(plan, rank, ["a", "a"], [], b"", lambda told: never.wait() and [told]))


def led(plan, payload, host="a"):
    """Runs the tasks of a job that rank 0's task leads, and returns the error that its client gets."""
    met, told, rows = threading.Barrier(2), ["", ""], {}

    def task(rank):
        def all_gather(mine):
            told[rank] = mine
            met.wait(60)
            return told

        rows[rank] = list(_led(plan, rank, ["a", host], [], payload, all_gather))

    threads = [threading.Thread(target=task, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert rows[1] == []
    return pickle.loads(rows[0][0]).error


def test_why_rank_zeros_task_cannot_lead_reaches_the_client_as_it_is():
    payload = pickle_function(lambda: None, {})
    job = Job(name="train", size=2, payload=b"", stall_timeout_s=60, needs_horovod=False)
    plan = TaskPlan(job, "", 0, False, lakelens.__version__, 60.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = led(replace(plan, port=port), payload)
    assert type(error) is ClusterConfigurationError
    assert f"rank 0's task cannot listen on 127.0.0.1:{port}" in str(error)
    error = led(replace(plan, version="0.0.1"), payload)
    assert type(error) is ClusterConfigurationError
    assert "the driver 0.0.1" in str(error)


def test_a_host_of_rank_zero_without_an_ipv4_address_is_named():
    plan = TaskPlan(
        Job(name="train", size=2, payload=b"", stall_timeout_s=60), "", 0, False, lakelens.__version__, 60.0
    )
    told, _ = _led(plan, 0, ["::1", "b"], [], b"", lambda mine: [mine])
    error = pickle.loads(told).error
    assert type(error) is ClusterConfigurationError
    assert "SPARK_LOCAL_HOSTNAME, '::1' for rank 0's executor, has no IPv4 address" in str(error)
