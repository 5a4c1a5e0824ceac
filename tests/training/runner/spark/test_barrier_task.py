"""The body of a barrier task against a driver's channel, without Spark."""

from __future__ import annotations

import pickle
import socket
import threading
from dataclasses import replace

import pytest

import lakelens
from lakelens.errors import ClusterConfigurationError, LaunchError, RankFailedError
from lakelens.training.runner.function_pickle import pickle_function
from lakelens.training.runner.placement.job import Job
from lakelens.training.runner.spark import barrier_task
from lakelens.training.runner.spark.barrier_task import _led
from lakelens.training.runner.spark.task_channel import TaskPlan

pytestmark = pytest.mark.unit


JOB = Job(name="train", size=2, payload=b"", stall_timeout_s=60, needs_horovod=False)
PLAN = TaskPlan(JOB, "", 0, False, lakelens.__version__, 60.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_task_that_waits_for_one_that_hangs_before_they_meet_ends_the_stage(rank):
    never = threading.Event()
    plan = replace(PLAN, reports_within_s=0.5)
    with pytest.raises(LaunchError, match=r"a task never reported to the others within 0\.5 s"):
        list(_led(plan, rank, ["a", "a"], [], b"", lambda told: never.wait() and [told]))


def led(plan, payload):
    """Runs the tasks of a job that rank 0's task leads, and returns the error that its client gets."""
    met, told, rows = threading.Barrier(2), ["", ""], {}

    def task(rank):
        def all_gather(mine):
            told[rank] = mine
            met.wait(60)
            return told

        rows[rank] = list(_led(plan, rank, ["a", "a"], [], payload, all_gather))

    threads = [threading.Thread(target=task, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert rows[1] == []
    return pickle.loads(rows[0][0]).error


def test_a_task_that_finds_no_interface_for_its_rank_says_so(monkeypatch):
    def none(address):
        raise LaunchError(f"no network interface of this machine has the address {address}")

    machines = iter("ab")
    monkeypatch.setattr(barrier_task, "machine_key", lambda: next(machines))
    monkeypatch.setattr(barrier_task, "interface_of", none)
    error = led(PLAN, pickle_function(lambda: None, {}))
    assert (type(error), error.reason) == (RankFailedError, "raised")
    assert "no network interface of this machine has the address 127.0.0.1" in str(error)


def test_why_rank_zeros_task_cannot_lead_reaches_the_client_as_it_is():
    payload = pickle_function(lambda: None, {})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = led(replace(PLAN, port=port), payload)
    assert type(error) is ClusterConfigurationError
    assert f"rank 0's task cannot listen on 127.0.0.1:{port}" in str(error)
    error = led(replace(PLAN, version="0.0.1"), payload)
    assert type(error) is ClusterConfigurationError
    assert "the driver 0.0.1" in str(error)


def test_a_host_of_rank_zero_without_an_ipv4_address_is_named():
    told, _ = _led(PLAN, 0, ["::1", "b"], [], b"", lambda mine: [mine])
    error = pickle.loads(told).error
    assert type(error) is ClusterConfigurationError
    assert "SPARK_LOCAL_HOSTNAME, '::1' for rank 0's executor, has no IPv4 address" in str(error)
