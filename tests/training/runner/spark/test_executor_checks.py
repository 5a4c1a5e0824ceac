"""Executors that differ from the driver, and failures of Spark, are named with what to change."""

from __future__ import annotations

import re

import pytest

from lakelens.errors import ClusterConfigurationError, LaunchError, RankFailedError
from lakelens.training.runner.spark.executor_checks import check_executors, explained, listening_address

pytestmark = pytest.mark.unit


def test_the_driver_never_listens_on_all_interfaces():
    assert listening_address("local-cluster[2,1,1024]", {"spark.driver.host": "10.0.0.9"}) == ("127.0.0.1", "127.0.0.1")
    conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "0.0.0.0"}
    assert listening_address("spark://h:7077", conf) == ("127.0.0.1", "127.0.0.1")
    conf = {"spark.driver.host": "driver-svc", "spark.driver.bindAddress": "10.1.2.3"}
    assert listening_address("k8s://h", conf) == ("10.1.2.3", "driver-svc")
    with pytest.raises(
        ClusterConfigurationError, match=r"spark.driver.host='no.such.host.invalid' has no IPv4 address"
    ):
        listening_address("yarn", {"spark.driver.host": "no.such.host.invalid"})
    with pytest.raises(ClusterConfigurationError, match=r"spark.driver.host='0.0.0.0' stands for all interfaces"):
        listening_address("yarn", {"spark.driver.host": "0.0.0.0"})


def executor(**changes):
    import platform

    import lakelens

    known = {"python": platform.python_version(), "version": lakelens.__version__, "problem": None}
    return {"rank": 0, "host": "w1", **known, **changes}


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
    check_executors([executor(problem="Horovod is missing")], needs_horovod=False)
    with pytest.raises(ClusterConfigurationError, match=words):
        check_executors([executor(), executor(**changes)])


@pytest.mark.parametrize(
    ("spark_says", "kind", "words"),
    [
        ("results is bigger than spark.driver.maxResultSize", LaunchError, "larger than spark.driver.max"),
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


_OURS = "lakelens.errors.LaunchError: "


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("ModuleNotFoundError: No module named 'psutil'", RankFailedError, "says: ModuleNotFoundError: .*'psutil'$"),
        (f"{_OURS}rank 0 on w1 cannot reach the driver at d:4", ClusterConfigurationError, "^training: rank 0 .* d:4$"),
        (f"{_OURS}rank 1 on w2 cannot reach rank 0's task at d", ClusterConfigurationError, "^training: rank 1 .* d$"),
        (f"{_OURS}1 of 2 tasks never reported to rank 0's task within 9", LaunchError, "^training: 1 .* 9; an exec"),
    ],
)
def test_why_a_task_could_not_start_is_said_in_the_words_of_its_python(said, kind, words):
    found = explained(RuntimeError(A_TASK_FAILED.format(said=said)), "training")
    assert type(found) is kind
    assert re.search(words, str(found))


def test_a_task_that_speaks_of_something_cancelled_has_not_been_cancelled():
    found = explained(RuntimeError(A_TASK_FAILED.format(said="CancelledError: request cancelled")), "training")
    assert found.reason == "lost"
