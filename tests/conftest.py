"""Fixtures that all folders share: one real two-executor Spark, or Connect server, for the whole test process."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

# pytest imports test files by path; what they share lies beside them, and scripts that they run in .ci.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / ".ci"))

from class_archive import use_class_archive
from connect_server import SMALL_TABLES, connect_mode, connect_server

from lakelens.spark.jvm import SHORT_LIVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Sessions of tests end before the JVM's optimising compiler has paid for itself, and it takes the cores from the tests.
# So does compiling each query, which is half of what an ingest of ten rows costs. The demo runs with what users have.
os.environ.setdefault(
    "JAVA_TOOL_OPTIONS",
    f"{SHORT_LIVED} -XX:MetaspaceSize=256m -Dspark.ui.enabled=false "
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN",
)
# Hundreds of Python processes start: each would compile our modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A Java or Spark that the developer's shell points at would make the tests depend on that machine.
os.environ.pop("SPARK_HOME", None)
# A deadline for each example would be a measured time, which a loaded machine misses.
hypothesis.settings.register_profile("lakelens", deadline=None)
hypothesis.settings.load_profile("lakelens")
# A shell's background jobs ignore Ctrl-C, and so does what they start: tests that interrupt would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The first of these that a test is marked with says how much it starts.
_HEAVY_FIRST = ("spark", "horovod", "tensorflow", "system", "unit")


# The tests that use the `spark` fixture share three sessions: they are the longest of all and start first. One classic
# session leaves a core idle once the other processes have finished.
_SHARED_SESSIONS = ("spark-ingest", "spark", "spark-connect")
CLASSIC, CONNECT = "classic", "connect"
DRIVER = "driver"  # no session: ranks are processes on the driver
_SHOWN_FILES = 20


def _kind_of(item: pytest.Item) -> str | None:
    """The kind of the session that a test shares; None if it shares none."""
    if "spark" not in getattr(item, "fixturenames", ()):
        return None
    return item.callspec.params.get("spark", CLASSIC) if hasattr(item, "callspec") else CLASSIC


def _group_of(item: pytest.Item) -> str:
    if mark := item.get_closest_marker("xdist_group"):
        return str(mark.args[0])  # that of a module whose tests share more than a session
    names = set(getattr(item, "fixturenames", ()))
    if "two_ranks" in names:
        return "two-ranks"  # one launch for several modules
    if "wheel" in names and item.get_closest_marker("long") is None:
        return "wheel"  # which is built once; long tests take longer than that
    kind = _kind_of(item)
    if kind in (None, DRIVER):
        return str(item.path)
    if kind == CONNECT:
        return _SHARED_SESSIONS[2]
    is_of_ingest = item.path.parts[-3:-1] in (("etl", "ingest"), ("etl", "sources"), ("etl", "stories"))
    return _SHARED_SESSIONS[0 if is_of_ingest else 1]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test on each kind of session that its mark `sessions` names, or that of its module."""
    mark = metafunc.definition.get_closest_marker("sessions")
    if mark is None or "spark" not in metafunc.fixturenames:
        return
    marks = {DRIVER: [pytest.mark.system], CLASSIC: [pytest.mark.spark], CONNECT: [pytest.mark.spark]}
    metafunc.parametrize("spark", [pytest.param(kind, marks=marks[kind]) for kind in mark.args], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Makes this process a client of Spark Connect for a test on such a session, and for its fixtures."""
    with connect_mode() if _kind_of(item) == CONNECT else nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fails the test file whose import imports TensorFlow, which takes seconds of every process that collects it."""
    before = "tensorflow" in sys.modules
    report = yield
    if "tensorflow" in sys.modules and not before and isinstance(collector, pytest.Module):
        report.outcome = "failed"
        report.longrepr = f"{collector.path.name} imports TensorFlow when it is collected; import it in the tests"
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option with which CI runs a share of the long tests."""
    parser.addoption("--long-share", metavar="I/N", help="of the long tests, every Nth by name, from the Ith (from 0)")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-xdist looks at the groups, and after others' order
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Keeps in one process, when several run the tests, what shares a fixture: a Spark session, or those of a file.

    Groups that start clusters come first and those of pure logic last, so that no process waits for the others.
    """
    if share := config.getoption("--long-share"):
        left_out = _outside(share, items)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    groups = {id(item): _group_of(item) for item in items}  # pytest-xdist changes an item's hash with its name
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[id(item)]))
    yield
    weights: dict[str, int] = {}
    for item in items:
        group = groups[id(item)]
        marked = (rank for rank, name in enumerate(_HEAVY_FIRST) if item.get_closest_marker(name))
        weight = -1 if group in _SHARED_SESSIONS else next(marked, len(_HEAVY_FIRST))
        weights[group] = min(weight, weights.get(group, weight))
    for item in {groups[id(item)]: item for item in reversed(items)}.values():
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))  # the first of a group waits for what the session shares
    order = dict.fromkeys(groups[id(item)] for item in items)
    places = {group: (weights[group], place) for place, group in enumerate(order)}
    items.sort(key=lambda item: places[groups[id(item)]])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the files whose tests took the most seconds, with their fixtures, where several files ran."""
    seconds: Counter[str] = Counter()
    tests: dict[str, set[str]] = defaultdict(set)
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            file = report.nodeid.partition("::")[0]
            seconds[file] += report.duration
            tests[file].add(report.nodeid)
    if len(tests) > 1:
        terminalreporter.section(f"slowest {min(len(tests), _SHOWN_FILES)} of {len(tests)} files")
        terminalreporter.line("seconds  tests  file")
        for file, taken in seconds.most_common(_SHOWN_FILES):
            terminalreporter.line(f"{taken:7.1f}  {len(tests[file]):5}  {file}")


def _outside(share: str, items: list[pytest.Item]) -> list[pytest.Item]:
    """Finds the long tests that are not in a share; Airflow's have environments of their own and stay together."""
    first, count = map(int, share.split("/"))
    long = [item for item in items if item.get_closest_marker("long") and not item.get_closest_marker("airflow")]
    chosen = set(sorted(item.nodeid for item in long)[first::count])
    return [item for item in long if item.nodeid not in chosen]


@pytest.fixture(scope="session", autouse=True)
def _class_archive(request: pytest.FixtureRequest) -> None:
    if any(item.get_closest_marker("spark") for item in request.session.items):
        use_class_archive()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> SparkSession:
    """A session of the kind that the mark `sessions` names; default: a classic one."""
    session: SparkSession = request.getfixturevalue(f"{getattr(request, 'param', CLASSIC)}_spark")
    return session


@pytest.fixture(scope="session")
def driver_spark() -> None:
    """No session, for tests of ranks that also run as processes on the driver."""


@pytest.fixture(scope="session")
def connect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Spark Connect server of two slots."""
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture(scope="session")
def connect_spark(connect_url: str) -> Iterator[SparkSession]:
    """A session on the server."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    session = ConnectSession.builder.remote(connect_url).create()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def classic_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session with two executors, two slots each, in processes of their own."""
    from lakelens import spark_session

    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    session = spark_session(
        "local-cluster[2,2,1024]",
        app_name="lakelens-tests",
        conf={
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.driver.memory": "1g",
            "spark.executor.memory": "1g",
            **SMALL_TABLES,
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    jvm = session.sparkContext._jvm
    for name in ("functions", "PythonSQLUtils", "PythonUtils", "SparkSession", "java", "org", "scala"):
        setattr(jvm, name, getattr(jvm, name))  # py4j would search all of Spark's JARs for it at every use
    yield session
    session.stop()
