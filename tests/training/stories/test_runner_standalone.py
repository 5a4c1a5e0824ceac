"""Ranks on a real standalone cluster: a master and two workers, one in a network of its own if that is possible."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from child_processes import ending_with_this_process
from leftovers import Watch, leaves_nothing, wait_until
from standalone_cluster import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.horovod, pytest.mark.long, pytest.mark.timeout(900)]

NETWORK = f"lakelens{os.getpid()}"
NET = f"10.{200 + os.getpid() // 256 % 50}.{os.getpid() % 256}"  # of this process, not of another run's
OURS, THEIRS = f"{NET}.1", f"{NET}.2"


def second_network() -> bool:
    """Makes a network namespace, another machine as far as sockets can tell; needs root."""
    near, far = f"ll{os.getpid() % 10**8}a", f"ll{os.getpid() % 10**8}b"
    commands = [
        f"ip netns add {NETWORK}",
        f"ip link add {near} type veth peer name {far}",
        f"ip link set {far} netns {NETWORK}",
        f"ip addr add {OURS}/24 dev {near}",
        f"ip link set {near} up",
        f"ip netns exec {NETWORK} ip addr add {THEIRS}/24 dev {far}",
        f"ip netns exec {NETWORK} ip link set {far} up",
        f"ip netns exec {NETWORK} ip link set lo up",
    ]
    try:
        return all(
            subprocess.run(command.split(), capture_output=True, check=False).returncode == 0 for command in commands
        )
    except OSError:
        return False


HEAD = """
import json, os, sys, time
from pyspark.sql import SparkSession
from lakelens.errors import *
from lakelens.training.runner.runner import HorovodRunner
from lakelens.training.runner.spark.slots import registered_now, slots_now

os.environ["PYSPARK_PYTHON"] = sys.executable
spark = (
    SparkSession.builder.master(sys.argv[1]).appName("standalone")
    .config("spark.driver.host", sys.argv[4]).config("spark.driver.bindAddress", sys.argv[4])
    .config("spark.ui.enabled", "false").config("spark.executor.memory", "512m").config("spark.driver.memory", "512m")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
ENV = {"LAKELENS_TEST_TOKEN": sys.argv[2], "TMPDIR": sys.argv[5], "TF_CPP_MIN_LOG_LEVEL": "2"}
FOLDER = sys.argv[3]

def sleep_for_ever(place):
    import subprocess, time
    from pathlib import Path
    from lakelens.training.rank.process_context import current
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(f"{place}-{current().rank}").touch()
    time.sleep(600)
"""


@dataclass
class Cluster(StandaloneCluster):
    """A cluster whose second worker may be in a network of its own."""

    address: str = "127.0.0.1"
    networks: int = 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from lakelens.spark.jvm import find_java

    folder = tmp_path_factory.mktemp("standalone")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))},
        "JAVA_HOME": str(find_java().home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    cluster = Cluster(folder, environment)
    try:
        workers: dict[str, Sequence[str]] = {"127.0.0.2": (), "127.0.0.3": ()}
        if second_network():
            cluster.address, cluster.networks = OURS, 2
            workers = {OURS: (), THEIRS: ("ip", "netns", "exec", NETWORK)}
        cluster.start_all(cluster.address, workers)
        yield cluster
    finally:
        cluster.stop()
        subprocess.run(["ip", "netns", "del", NETWORK], capture_output=True, check=False)


@dataclass
class Driver:
    """A driver in a process of its own, whose last job is one of ranks that sleep."""

    folder: Path
    watch: Watch
    process: subprocess.Popen[str]

    def ready(self, name: str, ranks: int) -> None:
        """Waits for the ranks of a job that sleeps."""
        wait_until(lambda: len(list(self.folder.glob(f"{name}-*"))) >= ranks or self.process.poll() is not None, 600)
        assert self.process.poll() is None, self.said("errors")[-3000:]

    def said(self, stream: str = "output") -> str:
        return (self.folder / stream).read_text()

    def told(self) -> list[Any]:
        """What the driver has printed, an object a line."""
        return [json.loads(line) for line in self.said().splitlines() if line.startswith(("[", '"', "{"))]

    def end_by(self, number: signal.Signals) -> Story:
        """Sends the driver a signal; gives what it has told once nothing of its ranks is left."""
        story = Story(self.told(), len(self.watch.processes()), self.said("errors"))
        self.process.send_signal(number)
        self.watch.wait_until_gone()
        return story


@contextlib.contextmanager
def driven(cluster: Cluster, folder: Path, body: str) -> Iterator[Driver]:
    script = folder / "driver.py"
    script.write_text(HEAD + body)
    # Ports are those of the cluster's own JVMs, which stay.
    with (
        leaves_nothing(same_process_tree=False) as watch,
        (folder / "output").open("w") as output,
        (folder / "errors").open("w") as errors,
    ):
        command = [sys.executable, str(script), cluster.url, watch.token, str(folder), cluster.address]
        process = subprocess.Popen(
            ending_with_this_process([*command, str(watch.temporary)]),
            stdout=output,
            stderr=errors,
            text=True,
            env=cluster.environment,
            start_new_session=True,
        )
        try:
            yield Driver(folder, watch, process)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


WORLD = """
def main():
    import numpy as np
    import tensorflow as tf
    import lakelens.hvd as hvd
    hvd.init()
    total = hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum).numpy().tolist()
    import psutil
    addresses = hvd.allgather_object([c.laddr.ip for c in psutil.Process().net_connections("inet")])
    places = hvd.allgather_object((hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()))
    return total, places, np.ones(3 << 20), addresses

def dies():
    import os, time
    from lakelens.training.rank.process_context import current
    if current().rank == 1:
        os.kill(os.getpid(), 9)
    time.sleep(600)

while registered_now(spark).executors < 2:
    time.sleep(0.1)
total, places, array, addresses = HorovodRunner(np=0, env=ENV, spark=spark).run(main)
results = {"total": total, "places": places, "array": int(array.sum()), "addresses": addresses}
try:
    HorovodRunner(np=3, env=ENV, spark=spark, slots_wait_s=1).run(dies)
except NotEnoughSlotsError as error:
    results["slots"] = str(error)
try:
    HorovodRunner(np=2, env=ENV, spark=spark).run(dies)
except RankFailedError as error:
    results["died"] = error.summary, error.host
import psutil
executors = [
    process for process in psutil.process_iter(["cmdline"])
    if {"org.apache.spark.executor.CoarseGrainedExecutorBackend", spark.sparkContext.applicationId}
    <= set(process.info["cmdline"] or [])
]
executors[0].kill()
while slots_now(spark) > 1:
    time.sleep(0.02)
results["after a loss"] = HorovodRunner(np=2, env=ENV, spark=spark).run(lambda: "ran")
print(json.dumps(results), flush=True)
HorovodRunner(np=2, env=ENV, spark=spark).run(sleep_for_ever, place=FOLDER + "/killed")
"""
LOST = """
import socket
taken = socket.create_server((sys.argv[4], 0))
try:
    HorovodRunner(np=2, env=ENV, spark=spark, driver_port=taken.getsockname()[1]).run(sleep_for_ever, place=FOLDER)
except LaunchError as error:
    print(json.dumps(str(error)), flush=True)
try:
    HorovodRunner(np=2, env=ENV, spark=spark).run(sleep_for_ever, place=FOLDER + "/lost")
except RankFailedError as error:
    print(json.dumps([str(error), error.reason]), flush=True)
HorovodRunner(np=1, env=ENV, spark=spark).run(sleep_for_ever, place=FOLDER + "/interrupted")
"""


@dataclass(frozen=True)
class Story:
    """What a driver has told, and how many processes its last ranks were, which have ended with it."""

    told: list[Any]
    processes: int
    errors: str


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Jobs on two hosts; the driver is killed during the last."""
    with driven(cluster, tmp_path_factory.mktemp("world"), WORLD) as driver:
        driver.ready("killed", 2)
        return driver.end_by(signal.SIGKILL)


@pytest.fixture(scope="module")
def lost(cluster: Cluster, world: Story, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """One host is lost during a job; the driver is interrupted during another, on the host that stays."""
    with driven(cluster, tmp_path_factory.mktemp("lost"), LOST) as driver:
        driver.ready("lost", 2)
        worker = psutil.Process(cluster.processes[-1].pid)
        # The host's JVMs vanish at once, as when its power fails; ranks there must not outlive them.
        for jvm in [process for process in [*worker.children(recursive=True), worker] if "java" in process.name()]:
            jvm.kill()
        driver.ready("interrupted", 1)
        return driver.end_by(signal.SIGINT)


def test_ranks_on_two_hosts_are_one_world(cluster, world):
    (results,) = world.told
    assert results["total"] == [3.0]
    if cluster.networks == 2:
        assert results["places"] == [[0, 0, 1, 0, 2], [1, 0, 1, 1, 2]]
        assert {address for addresses in results["addresses"] for address in addresses} <= {"127.0.0.1", OURS, THEIRS}
    else:
        assert results["places"] == [[0, 0, 2, 0, 1], [1, 1, 2, 0, 1]]
    assert results["array"] == 3 << 20
    assert "np=3: the ranks need 3 slots and the cluster has 2" in results["slots"]
    summary, host = results["died"]
    assert "was ended by SIGKILL" in summary
    assert host.startswith(("127.0.0.", f"{NET}."))


def test_a_job_just_after_an_executor_was_lost_waits_for_its_successor_and_says_what_was_lost(world):
    assert world.told[0]["after a loss"] == "ran"
    assert re.search(r"waits for 2 slots; the cluster has 1; executor \d on \S+ was lost \d+ s ago", world.errors)


def test_no_rank_outlives_a_driver_that_is_killed_or_interrupted(world, lost):
    # Of each rank there are its keeper, itself and what it has started.
    assert (world.processes >= 6, lost.processes >= 3) == (True, True)


def test_a_port_that_is_taken_and_a_lost_host_are_named(cluster, lost):
    taken, (message, reason) = lost.told
    assert f"cannot listen on {cluster.address}" in taken
    assert reason == "lost"
    assert re.search(r"rank \d of 2 on [\d.]+ lost contact with the driver", message)
