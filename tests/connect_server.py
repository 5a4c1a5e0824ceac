"""A Spark Connect server in a process of its own, and sessions on it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STARTS_S = 400.0  # on a machine that does much else
_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}
_PORT = re.compile(r"Spark Connect server started at: \S*?:(\d+)")


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Starts a server of two cores with Delta Lake and gives its URL; it ends with the block.

    Args:
        folder: For the server's log, warehouse and temporary files.
    """
    log = folder / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            _command(), cwd=folder, env=_environment(folder), stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield f"sc://127.0.0.1:{_port(server, log)}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@contextmanager
def connect_session(folder: Path) -> Iterator[SparkSession]:
    """Starts a server and gives a session on it; both end with the block."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    with connect_server(folder) as url, pytest.MonkeyPatch.context() as patch:
        # As `SparkSession.builder.remote(...)` sets it, which a process that has a classic session may not call.
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session = ConnectSession.builder.remote(url).create()
        try:
            yield session
        finally:
            session.stop()


def _command() -> list[str]:
    import pyspark

    from lakelens.spark.session import delta_package

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
    from lakelens.spark.java import find_java

    own = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(folder)}
    return {**os.environ, **own}


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _STARTS_S
    while time.monotonic() < deadline and server.poll() is None:
        found = _PORT.search(log.read_text(errors="replace"))
        if found:
            return int(found[1])
        time.sleep(0.1)
    raise AssertionError(f"the server has not started:\n{log.read_text(errors='replace')[-3000:]}")
