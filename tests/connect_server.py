"""A Spark Connect server in a process of its own, and what makes this process its client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import local

import pytest
from child_processes import ending_with_this_process, found_in_log

from lakelens.spark.jvm import find_java
from lakelens.spark.session import _one_at_a_time, delta_package

_STARTS_S = 400.0  # on a machine that does much else
# Of every shared session. Tables of tests have some ten rows: more tasks would have none; and of an adaptive query each
# stage is a job. The demo, the README and what spark-submit starts have adaptive queries.
SMALL_TABLES = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Each query is described at length for a page that nobody opens.
    "spark.sql.ui.explainMode": "simple",
    # Of each column a place in the caller's code is sent to the JVM, in three calls.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.ui.enabled": "false",
}
_SETTINGS = {
    **SMALL_TABLES,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}
_MODE = "SPARK_CONNECT_MODE_ENABLED"


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Starts a server of two slots with Delta Lake, which writes into a folder; gives its URL, and ends it."""
    log = folder / "server.log"
    with log.open("w") as output, ExitStack() as starting:
        starting.enter_context(_one_at_a_time())  # as the sessions of other tests, which may fetch packages too
        command, environment = ending_with_this_process(_command()), _environment(folder)
        server = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            port = found_in_log(r"Spark Connect server started at: \S*:(\d+)", log, server, _STARTS_S)
            starting.close()
            yield f"sc://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


_ACTIVE = local()


@contextmanager
def connect_mode() -> Iterator[None]:
    """Makes Connect's session the active one and pyspark's functions those of Connect, until the block ends.

    `SparkSession.builder.remote(...)` does so for ever, and a process that has a classic session may not call it.
    """
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_MODE, "1")
        patch.setattr(ConnectSession, "_active_session", _ACTIVE)
        yield


def classic_environment() -> dict[str, str]:
    """The environment for a process that is not a client of Spark Connect."""
    return {name: value for name, value in os.environ.items() if name != _MODE}


def _command() -> list[str]:
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    packages = [delta_package()]
    if pyspark.__version__.startswith("3.5"):  # later ones come with it
        packages.append("org.apache.spark:spark-connect_2.12:3.5.7")
    command += ["--packages", ",".join(packages)]
    for key, value in _SETTINGS.items():
        command += ["--conf", f"{key}={value}"]
    return [*command, "spark-internal"]


def _environment(folder: Path) -> dict[str, str]:
    own = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(folder)}
    return {**classic_environment(), **own}
