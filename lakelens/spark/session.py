"""The Spark session that lakelens works in: Delta configured, workers on this interpreter, the wheel on their path.

Spark 3.5 sends every file of `--py-files`, but executors only import from those called .zip, .egg or .jar: a .whl is
found by the driver alone. A wheel is a zip file, so the same bytes under another name are enough.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeAlias, Union, overload

from ..errors import InvalidArgumentError, MissingDependencyError, SessionError
from .jvm import find_java, is_verbose, own_jvm, start_jvm
from .port import (
    application_of,
    is_connect,
    is_running,
    java_session,
    jvm,
    master_of,
    option_of,
    set_log_level,
    ship_package,
    take_jars_off_path,
    temporary_folder,
)

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession


def ship_wheel(spark: SparkSession) -> Path | None:
    """Makes executors import lakelens from this process's wheel; returns the file sent, None if none had to be."""
    wheel = Path(__file__).parents[2]  # the .whl file, or a folder that holds lakelens
    if wheel.suffix != ".whl" or not wheel.is_file():
        return None
    sent = temporary_folder(spark) / f"{wheel.stem}.zip"
    if sent.exists():
        return None
    shutil.copyfile(wheel, sent)
    ship_package(spark, sent)
    return sent


logger = logging.getLogger(__name__)

# A session, or what opens one once all is checked that needs none.
SessionSource: TypeAlias = Union["SparkSession", "Callable[[], SparkSession]"]

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta 4.3 depends on these, which Spark has: every application would copy 50 MB to each executor.
    "spark.jars.excludes": "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime",
}
# Jobs of one application share its slots: a trial of a search need not wait for jobs that were submitted before it.
_SCHEDULING = {"spark.scheduler.mode": "FAIR"}
# Delta and Spark default to 50 and 200 partitions, meant for clusters; on one machine each costs a task for nothing.
_ONE_MACHINE = {
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.showConsoleProgress": "false",
}
# Executors are told to end when their session does, and are killed if they have not after ten seconds.
_EXECUTORS_END_S = 20.0


def spark_session(
    master: str | None = None, *, app_name: str = "lakelens", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Returns a Spark session with Delta Lake and fair scheduling configured; an active session is reused.

    Python workers run on the interpreter of the driver unless PYSPARK_PYTHON or `spark.pyspark.python` is set.
    Delta's JARs are resolved by Spark from Maven unless they are already on its class path. Python modules in JARs are
    not found: install such packages with pip. Where SPARK_REMOTE is set, it is a Spark Connect session on that server,
    which has its own Python, JARs and settings.

    Args:
        master: A Spark master URL; None takes spark-submit's, or `local[*]`.
        app_name: The name that the Spark UI shows.
        conf: Spark settings, as in `{"spark.executor.memory": "4g"}`. An active session keeps its own; a warning
            names those that differ.

    Raises:
        InvalidArgumentError: If a key of `conf` is not a Spark setting.
        SessionError: If the active session has another master or no Delta, or Spark does not start.
        MissingDependencyError: If pyspark, delta-spark or Java is missing, or JAVA_HOME names none that
            Spark starts on.

    Examples:
        >>> spark = lakelens.spark_session()
        >>> spark.range(3).count()
        3
    """
    settings = dict(conf or {})
    check_settings(settings)
    active = running_session()
    return _start(master, app_name, settings) if active is None else _reuse(active, master, settings)


@overload
def opened(spark: SessionSource) -> SparkSession: ...
@overload
def opened(spark: None) -> None: ...
def opened(spark: SessionSource | None) -> SparkSession | None:
    """Returns a given session, or opens it with a given function."""
    return spark() if callable(spark) else spark


def check_settings(conf: Mapping[str, str]) -> None:
    """Checks the keys of Spark settings."""
    wrong = [key for key in conf if not key.startswith("spark.")]
    if wrong:
        raise InvalidArgumentError(
            f'{wrong[0]!r} is not a Spark setting: keys start with "spark.", as in {{"spark.executor.memory": "4g"}}'
        )


def running_session() -> SparkSession | None:
    """Returns the active session, with Delta Lake or without; None if none is active."""
    try:
        active = _active()
    except ImportError as error:
        raise MissingDependencyError(f"pyspark is missing ({error}); pip install 'lakelens[spark]'") from error
    return active if active is not None and is_running(active) else None


def _active() -> SparkSession | None:
    """Finds the active session: the caller's own object, where pyspark would make another of the same session."""
    from pyspark.sql import SparkSession

    active, first = SparkSession.getActiveSession(), SparkSession._instantiatedSession
    if is_connect(active):
        return active
    if first is not None and (active is None or java_session(first).equals(java_session(active))):
        return first
    return active


def require_delta(spark: SparkSession) -> None:
    """Checks that a classic session has Delta Lake."""
    if "DATABRICKS_RUNTIME_VERSION" in os.environ or is_connect(spark):  # a server need not tell; reading a table does
        return
    if "DeltaSparkSessionExtension" not in spark.conf.get("spark.sql.extensions", ""):
        raise SessionError(
            "the active Spark session has no Delta Lake: spark.sql.extensions lacks "
            "io.delta.sql.DeltaSparkSessionExtension. Stop it (spark.stop()) and call lakelens.spark_session(), "
            "or start it with Delta's extension, catalog and JARs."
        )
    if not _has_delta_jars(spark):
        raise SessionError(
            "the active Spark session is configured for Delta Lake and lacks its JARs; a running JVM cannot take them. "
            f"Start it with them: spark-submit --packages {delta_package()} ..."
        )


def _has_delta_jars(spark: SparkSession) -> bool:
    from py4j.protocol import Py4JError

    loader = jvm(spark).java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass("io.delta.sql.DeltaSparkSessionExtension")
    except Py4JError:
        return False
    return True


def _reuse(active: SparkSession, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    if master is not None and master != (running := master_of(active)):
        raise SessionError(
            f"a Spark session on {running} is active, {master} was asked for; stop it first: spark.stop()"
        )
    require_delta(active)
    ignored = sorted(key for key, value in conf.items() if option_of(active, key) != str(value))
    if ignored:
        logger.warning(
            "a Spark session is active and keeps its own settings; ignored: %s. Stop it first (spark.stop()), or set "
            "what may change at run time with spark.conf.set",
            ", ".join(ignored),
        )
    ship_wheel(active)
    return active


def _start(master: str | None, app_name: str, conf: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    if os.environ.get("SPARK_REMOTE"):
        return _connected(master, conf)
    given = _submitted()
    master = master or given.get("spark.master", None) or "local[*]"
    if not given.get("spark.master", None):
        os.environ["JAVA_HOME"] = str(find_java().home)
    settings = _DELTA | _SCHEDULING
    if master.startswith("local"):
        settings |= _ONE_MACHINE
    # Only spark-submit reads spark.pyspark.python; a session started from Python reads the variable.
    if not (given.contains("spark.pyspark.python") or "spark.pyspark.python" in conf):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    elif "spark.pyspark.python" in conf:
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    settings = {key: value for key, value in settings.items() if not given.contains(key)}
    settings |= conf
    builder = SparkSession.builder.master(master).appName(app_name).config(map=settings)
    asked = (settings.get("spark.jars.packages", ""), given.get("spark.jars.packages", "") or "")
    packages = [package.strip() for given_list in asked for package in given_list.split(",") if package.strip()]
    if not any("delta-spark" in p for p in packages) and not _delta_jar_present():
        packages.append(delta_package())
    if packages:
        builder = builder.config("spark.jars.packages", ",".join(packages))
    spark = _started(builder, master)
    # Without this, executors outlive the driver by a moment and fill the terminal with errors about its death.
    atexit.register(_stop, spark, application_of(spark), master)
    require_delta(spark)
    take_jars_off_path(spark)
    ship_wheel(spark)
    return spark


def _connected(master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Connects to the server that SPARK_REMOTE names."""
    from pyspark.sql import SparkSession

    if master is not None:
        raise SessionError(f"SPARK_REMOTE is set, and the master {master} was asked for; unset it, or give no master")
    return SparkSession.builder.config(map=dict(conf)).getOrCreate()


def _started(builder: SparkSession.Builder, master: str) -> SparkSession:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    output = None
    try:
        with _one_at_a_time():
            output = start_jvm(builder._options)
        with _handler_kept():
            spark = builder.getOrCreate()
    except (PySparkException, Py4JJavaError) as error:
        if output is not None:
            output.show()
        why = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
        raise SessionError(
            f"Spark does not start on master {master!r} with the settings that it was given ({why}); what it said of "
            "them is on stderr. Correct the master or the setting"
        ) from error
    finally:
        if output is not None:
            output.pass_on()  # the JVM may serve another session
    return spark


def delta_package() -> str:
    """Names the Maven artifact of Delta that belongs to the installed delta-spark, as `group:artifact:version`."""
    from pyspark.sql import SparkSession

    try:
        from delta import configure_spark_with_delta_pip
    except ImportError as error:
        raise MissingDependencyError("delta-spark is missing; pip install 'lakelens[spark]'") from error
    return str(configure_spark_with_delta_pip(SparkSession.Builder())._options["spark.jars.packages"])


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Lets one session at a time start its JVM, which may fetch packages: Ivy's cache is not made for several."""
    with (Path(tempfile.gettempdir()) / f"lakelens-ivy-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _handler_kept() -> Iterator[None]:
    """Keeps a program's own handler of SIGINT: pyspark's waits for the running job before it cancels it."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        yield
        return
    from pyspark import context

    used = context.signal
    context.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)
    try:
        yield
    finally:
        context.signal = used


def _submitted() -> SparkConf:
    """Reads the settings of the spark-submit that has started this process; none otherwise."""
    from pyspark import SparkConf, SparkContext

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Its JVM is there already, and until Python has found it SparkConf() holds nothing.
        SparkContext._ensure_initialized()
    return SparkConf()


def _stop(spark: SparkSession, application_id: str, master: str) -> None:
    own = own_jvm()
    if own is None or own.poll() is None:
        if not is_verbose():
            with contextlib.suppress(Exception):  # it has been stopped
                set_log_level(spark, "OFF")  # parts that end before others make errors of it
        spark.stop()
    if master.startswith("local-cluster"):
        # Such a cluster never removes executors' logs and JARs below Spark's own folder.
        folder = _spark_home() / "work" / application_id
        deadline = time.monotonic() + _EXECUTORS_END_S
        while _is_worked_in(folder) and time.monotonic() < deadline:
            time.sleep(0.1)
        if not _is_worked_in(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_worked_in(folder: Path) -> bool:
    """Whether processes run below a folder: applications that start in the same second have one name and one folder."""
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if folder in place.readlink().parents:
                return True
    return False


def _spark_home() -> Path:
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def _delta_jar_present() -> bool:
    """Returns whether Spark's own jars/ folder already holds Delta, as images for clusters without internet have it."""
    return any((_spark_home() / "jars").glob("delta-spark*.jar"))
