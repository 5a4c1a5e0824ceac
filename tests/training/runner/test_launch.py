"""A rank's place and environment; which GPUs it sees."""

from __future__ import annotations

import json
import re
import socket
from types import SimpleNamespace

import pytest

from lakelens.errors import ClusterConfigurationError, LaunchError, RankFailedError
from lakelens.training.rank import network as hosts
from lakelens.training.rank.network import interface_of
from lakelens.training.runner.placement.gpus import (
    driver_gpus,
    executor_gpus,
    group_by_machine,
    through_index_map,
    visible_to_rank,
)
from lakelens.training.runner.placement.job import Job, assignment, horovod_environment, place, rank_environment
from lakelens.training.runner.spark.executor_checks import check_executors, explained, listening_address
from lakelens.training.runner.spark.slots import Expected, Registered, expected, reserve

pytestmark = pytest.mark.unit


def test_ranks_are_numbered_within_and_across_hosts():
    placed = place(["a", "b", "a", "a", "b"])
    assert [(p.local_rank, p.local_size) for p in placed] == [(0, 3), (0, 2), (1, 3), (2, 3), (1, 2)]
    assert [(p.cross_rank, p.cross_size) for p in placed] == [(0, 2), (1, 2), (0, 2), (0, 1), (1, 2)]
    assert [p.rank for p in placed] == [0, 1, 2, 3, 4]


def test_a_world_of_one_has_no_horovod_variables():
    assert horovod_environment(place(["a"])[0], "lo", 60) == {}


def test_a_rank_inherits_tuning_but_no_place_from_outside():
    job = Job(name="j", size=2, payload=b"", stall_timeout_s=60, environment={"A": "1"})
    base = {"HOROVOD_RANK": "3", "HOROVOD_FUSION_THRESHOLD": "0", "PATH": "/bin"}
    found = rank_environment(job, base)
    assert "HOROVOD_RANK" not in found
    assert (found["HOROVOD_FUSION_THRESHOLD"], found["PATH"], found["A"]) == ("0", "/bin", "1")


@pytest.mark.parametrize("outside", [True, False])
def test_what_the_user_sets_goes_before_a_ranks_defaults(outside):
    name, own = "HOROVOD_DISABLE_GROUP_FUSION", {"HOROVOD_DISABLE_GROUP_FUSION": "0"}
    job = Job(name="j", size=2, payload=b"", stall_timeout_s=60, environment={} if outside else own)
    assert rank_environment(job, own if outside else {})[name] == "0"
    assert rank_environment(Job(name="j", size=2, payload=b"", stall_timeout_s=60), {})[name] == "1"


def test_a_jobs_secret_is_new_each_time_and_in_no_representation():
    first, second = (Job(name="j", size=2, payload=b"secret", stall_timeout_s=60) for _ in range(2))
    assert first.key != second.key
    assert first.key not in repr(first)


def test_what_the_driver_sends_a_rank_over_the_network_holds_no_secret():
    job = Job(name="j", size=2, payload=b"", stall_timeout_s=60)
    assert job.key not in json.dumps(assignment(job, place(["a", "b"])[1], {"A": "1"}))


def test_an_interface_is_found_by_its_address_of_either_family(monkeypatch):
    entries = {
        "lo": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")],
        "eth0": [(socket.AF_INET, "10.0.0.2"), (socket.AF_INET6, "fd00::2"), (socket.AF_INET6, "fe80::1%eth0")],
    }
    found = {name: [SimpleNamespace(family=family, address=text) for family, text in entries[name]] for name in entries}
    monkeypatch.setattr(hosts.psutil, "net_if_addrs", lambda: found)
    assert [interface_of(text) for text in ("10.0.0.2", "::1", "fd00::2", "fe80::1")] == ["eth0", "lo", "eth0", "eth0"]
    with pytest.raises(LaunchError, match=r"no network interface .* the address fd00::3; it has .*'eth0': \['fd00::2'"):
        interface_of("fd00::3")


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_visible_devices_are_an_index_map():
    assert through_index_map(["0", "1"], None) == ["0", "1"]
    assert through_index_map(["1", "0"], "4,6") == ["6", "4"]
    assert through_index_map(["0"], "GPU-7f3a") == ["GPU-7f3a"]
    with pytest.raises(ClusterConfigurationError, match="'2' is no index into CUDA_VISIBLE_DEVICES='4,6'"):
        through_index_map(["2"], "4,6")


def test_each_rank_sees_its_hosts_gpus_in_the_order_of_local_ranks():
    shown = visible_to_rank(["6", "4"], 1, wanted=None)
    assert shown["CUDA_VISIBLE_DEVICES"].split(",")[1] == "4"
    assert shown["LAKELENS_GPU"] == "4"
    assert visible_to_rank([], 0, wanted=None) == {}
    assert visible_to_rank([], 0, wanted=False) == {"CUDA_VISIBLE_DEVICES": "-1"}


def test_the_drivers_gpus_are_dealt_one_each():
    assert driver_gpus(2, wanted=None, available=["0", "1", "2"]) == ["0", "1"]
    assert driver_gpus(2, wanted=None, available=[]) == []
    assert driver_gpus(2, wanted=False, available=["0"]) == []
    with pytest.raises(
        ClusterConfigurationError, match="3 ranks need 3 GPUs on the driver and it has 2; start at most 2 ranks"
    ):
        driver_gpus(3, wanted=None, available=["0", "1"])
    with pytest.raises(ClusterConfigurationError, match=r"it has 0; .*use_gpu=False"):
        driver_gpus(1, wanted=True, available=[])


def hello(gpus, visible=None, machine="m", executor="1"):
    return {"gpus": gpus, "visible_gpus": visible, "host": "a", "machine": machine, "executor": executor}


def test_local_ranks_are_counted_by_machine_and_by_executor_where_containers_number_gpus_anew():
    assert group_by_machine([hello([], machine="m"), hello([], machine="n"), hello([], machine="m")]) == ["m", "n", "m"]
    assert group_by_machine([hello(["0"], executor="1"), hello(["1"], executor="2")]) == ["m", "m"]
    assert group_by_machine([hello(["0"], executor="1"), hello(["0"], executor="2")]) == ["m-1", "m-2"]


def test_executors_gpus_come_from_sparks_addresses_through_the_index_map():
    placements = place(["a", "b", "a"])
    hellos = [hello(["1"], "5,7"), hello(["0"]), hello(["0"], "5,7")]
    assert executor_gpus(placements, hellos, wanted=None) == [["7", "5"], ["0"], ["7", "5"]]
    assert executor_gpus(placements, hellos, wanted=False) == [[], [], []]
    assert executor_gpus(placements, [hello([])] * 3, wanted=None) == [[], [], []]


def test_gpus_that_are_not_configured_are_an_error_that_names_the_settings():
    with pytest.raises(ClusterConfigurationError, match=r"rank 1 on a no GPU; set spark.executor.resource.gpu.amount"):
        executor_gpus(place(["a", "a"]), [hello(["0"]), hello([])], wanted=True)
    with pytest.raises(ClusterConfigurationError, match="were given the same GPU"):
        executor_gpus(place(["a", "a"]), [hello(["0"]), hello(["0"])], wanted=None)


# --- cluster ----------------------------------------------------------------------------------------------------------


EACH = "spark.executor.cores"
MOST = "spark.cores.max"


@pytest.mark.parametrize(
    ("master", "settings", "what"),
    [
        ("local[4]", {}, Expected(executors=0)),
        ("local[*]", {"spark.executor.instances": "9"}, Expected(executors=0)),
        ("local-cluster[3,2,1024]", {}, Expected(cores=6)),
        ("local-cluster[3, 2, 1024]", {MOST: "4"}, Expected(cores=4)),
        # Several executors on a worker, as many as its cores and its memory allow.
        ("local-cluster[2,5,4096]", {EACH: "2"}, Expected(cores=8)),
        ("local-cluster[2,4,1024]", {EACH: "1", "spark.executor.memory": "512m"}, Expected(cores=4)),
        ("local-cluster[2,4,4096]", {EACH: "2", MOST: "5"}, Expected(cores=4)),
        # Its master starts what its workers have room for, whatever number of executors is set.
        ("spark://h:7077", {"spark.executor.instances": "1"}, Expected()),
        ("spark://h:7077", {MOST: "8"}, Expected(cores=8)),
        ("spark://h:7077", {MOST: "9", EACH: "4"}, Expected(cores=8)),
        ("yarn", {"spark.executor.instances": "5"}, Expected(executors=5)),
        ("yarn", {}, Expected(executors=2)),
        ("k8s://h", {"spark.executor.instances": "x"}, Expected()),
    ],
)
def test_the_settings_say_which_executors_there_will_be(master, settings, what):
    assert expected(master, settings) == what


@pytest.mark.parametrize(
    ("what", "there", "answer"),
    [
        # local[N]: at once.
        (Expected(executors=0), Registered(0, 0, 0.0), True),
        # As many as the settings promise: at once. Fewer: not before they have come, however long that takes.
        (Expected(executors=3), Registered(3, 3, 0.0), True),
        (Expected(executors=3), Registered(2, 2, 500.0), False),
        # As many cores as the application may have: at once.
        (Expected(cores=8), Registered(2, 8, 0.0), True),
        (Expected(cores=8), Registered(2, 4, 29.0), False),
        # A standalone cluster may have no room for more: what has not come half a minute after the last does not come.
        (Expected(cores=8), Registered(2, 4, 30.0), True),
        (Expected(), Registered(2, 4, 9.0), False),
        (Expected(), Registered(2, 4, 10.0), True),
    ],
)
def test_more_slots_are_waited_for_only_while_they_may_come(what, there, answer):
    assert what.all_there(there) is answer


@pytest.mark.parametrize(
    ("what", "there", "answer"),
    [
        # An executor has come or gone more recently than the caller is willing to wait: another may come.
        (Expected(), Registered(1, 1, 59.0), False),
        (Expected(cores=2), Registered(1, 1, 59.0), False),
        (Expected(), Registered(1, 1, 60.0), True),
        # All that may come are there.
        (Expected(cores=2), Registered(2, 2, 1.0), True),
        (Expected(executors=0), Registered(0, 0, 1.0), True),
    ],
)
def test_who_needs_more_slots_waits_for_them_as_long_as_was_promised(what, there, answer):
    assert what.all_there(there, wait_s=60.0) is answer


def test_slots_that_come_while_a_job_waits_for_those_of_another_are_noticed():
    counts = iter([1, 1, 1, 2])
    said = []
    with reserve("app", "first", 1, lambda: 1, 0.0, said.append):
        with reserve("app", "second", 1, lambda: next(counts), 600.0, said.append):
            assert next(counts, None) is None
    assert said == ["second waits for 1 slots; first holds 1, 0 of 1 are free"]


def test_the_driver_never_listens_on_all_interfaces():
    assert listening_address("local-cluster[2,1,1024]", {"spark.driver.host": "10.0.0.9"}) == ("127.0.0.1", "127.0.0.1")
    conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "0.0.0.0"}
    assert listening_address("spark://h:7077", conf) == ("127.0.0.1", "127.0.0.1")
    conf = {"spark.driver.host": "driver-svc", "spark.driver.bindAddress": "10.1.2.3"}
    assert listening_address("k8s://h", conf) == ("10.1.2.3", "driver-svc")
    with pytest.raises(ClusterConfigurationError, match=r"spark.driver.host='no.such.host.invalid' has no address"):
        listening_address("yarn", {"spark.driver.host": "no.such.host.invalid"})
    with pytest.raises(ClusterConfigurationError, match=r"spark.driver.host='0.0.0.0' stands for all interfaces"):
        listening_address("yarn", {"spark.driver.host": "0.0.0.0"})


def executor(**changes):
    import platform

    import lakelens

    known = {
        "rank": 0,
        "host": "w1",
        "python": platform.python_version(),
        "version": lakelens.__version__,
        "problem": None,
    }
    return {**known, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"python": "3.8.1"}, "runs Python 3.8.1, the driver .*PYSPARK_PYTHON"),
        ({"version": "0.0.1"}, "has lakelens 0.0.1, the driver"),
        ({"problem": "Horovod is missing"}, r"executor on w1 \(rank 0\): Horovod is missing"),
    ],
)
def test_an_executor_that_differs_from_the_driver_is_named(changes, words):
    check_executors([executor()])
    with pytest.raises(ClusterConfigurationError, match=words):
        check_executors([executor(), executor(**changes)])


@pytest.mark.parametrize(
    ("spark_says", "kind", "words"),
    [
        (
            "Total size of results is bigger than spark.driver.maxResultSize",
            LaunchError,
            "larger than spark.driver.max",
        ),
        ("ModuleNotFoundError: No module named 'lakelens'", ClusterConfigurationError, "executors have no lakelens"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has", ClusterConfigurationError, "another Python than the driver"),
        ("x\nSparkException: Job 3 cancelled part of group", RankFailedError, "was cancelled .* Job 3 cancelled part"),
        ("SparkException: Could not recover from a failed barrier", RankFailedError, "was ended by Spark .* recover"),
    ],
)
def test_what_spark_says_of_a_job_becomes_an_error_that_says_what_to_change(spark_says, kind, words):
    found = explained(RuntimeError(spark_says), "training")
    assert type(found) is kind
    assert re.search(words, str(found))


A_TASK_FAILED = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted: Could not recover from a failed barrier ResultStage.
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/lib/socket.py", line 836, in create_connection
    sock.connect(sa)
ConnectionRefusedError: [Errno 111] Connection refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/worker.py", line 1247, in main
    process()
{said}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
\tat org.apache.spark.InterruptibleIterator.hasNext(InterruptibleIterator.scala:37)
Caused by: java.lang.IllegalStateException
"""


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("ModuleNotFoundError: No module named 'psutil'", RankFailedError, "says: ModuleNotFoundError: .*'psutil'$"),
        (
            "lakelens.errors.LaunchError: rank 0 on w1 cannot reach the driver at d:4 (refused); let executors connect",
            ClusterConfigurationError,
            r"^training: rank 0 on w1 cannot reach the driver at d:4 \(refused\); let executors connect$",
        ),
    ],
)
def test_why_a_task_could_not_start_is_said_in_the_words_of_its_python(said, kind, words):
    found = explained(RuntimeError(A_TASK_FAILED.format(said=said)), "training")
    assert type(found) is kind
    assert re.search(words, str(found))


def test_a_task_that_speaks_of_something_cancelled_has_not_been_cancelled():
    found = explained(RuntimeError(A_TASK_FAILED.format(said="CancelledError: request cancelled")), "training")
    assert found.reason == "lost"


# --- Gloo's interface -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resolved", "interface", "is_on"),
    [
        ("127.0.0.1", "lo", True),
        ("127.0.1.1", "lo", True),
        ("127.0.1.1", "eth0", False),
        ("10.0.0.5", "eth0", True),
        ("10.0.0.5", "lo", False),
        ("10.0.0.5", "eth1", False),
    ],
)
def test_a_host_name_is_on_the_interface_that_has_its_address(monkeypatch, resolved, interface, is_on):
    monkeypatch.setattr(hosts, "interface_addresses", lambda *_: {"lo": ["127.0.0.1"], "eth0": ["10.0.0.5"]})
    monkeypatch.setattr(hosts.socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", (resolved, 0))])
    assert hosts.host_name_is_on(interface) is is_on
