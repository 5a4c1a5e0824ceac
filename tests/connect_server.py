"""A Spark Connect server in a process of its own, and what makes this process its client."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import local

import pytest
from child_processes import ending_with_this_process

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
_PORT = re.compile(r"Spark Connect server started at: \S*:(\d+)")


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Starts a server of two slots with Delta Lake and gives its URL; it ends with the block.

    Args:
        folder: For the server's log, warehouse and temporary files.
    """
    log = folder / "server.log"
    with log.open("w") as output, ExitStack() as starting:
        starting.enter_context(_one_at_a_time())  # as the sessions of other tests, which may fetch packages too
        server = subprocess.Popen(
            ending_with_this_process(_command()),
            cwd=folder,
            env=_environment(folder),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            port = _port(server, log)
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


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _STARTS_S
    while time.monotonic() < deadline and server.poll() is None:
        found = _PORT.search(log.read_text(errors="replace"))
        if found:
            return int(found[1])
        time.sleep(0.1)
    raise AssertionError(f"the server has not started:\n{log.read_text(errors='replace')[-3000:]}")
