"""The session that lakelens works in."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakelens import spark_session
from lakelens.errors import InvalidArgumentError, SessionError
from lakelens.jobs.command import session_of
from lakelens.spark import jvm
from lakelens.spark.port import run_tasks
from lakelens.spark.session import _is_worked_in

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.unit
def test_a_key_that_is_no_spark_setting_is_refused():
    said = r"'executor_memory' is not a Spark setting.*spark\.executor\.memory"
    with pytest.raises(InvalidArgumentError, match=said):
        spark_session(conf={"executor_memory": "4g"})


@pytest.mark.spark
def test_what_is_sent_to_spark_leaves_the_callers_session_active(spark):
    from lakelens.etl.spark.writing_session import local_frame, writing_session

    spark.createDataFrame([(1,)], "number INT")
    session = writing_session(spark)
    for rows in ([], [(1,)]):
        local_frame(session, rows, "number INT")
        assert type(spark).getActiveSession()._jsparkSession.equals(spark._jsparkSession)
        assert spark_session() is spark_session(spark.sparkContext.master) is spark


@pytest.mark.spark
def test_an_active_session_names_the_settings_that_it_ignores_and_refuses_another_master(spark, caplog):
    spark_session(conf={"spark.executor.memory": "7g", "spark.scheduler.mode": "FAIR"})
    assert "ignored: spark.executor.memory." in caplog.text
    with pytest.raises(SessionError, match=r"local-cluster.*is active, local\[3\] was asked for.*stop"):
        spark_session("local[3]")


@pytest.mark.spark
def test_a_session_shares_its_slots_fairly_and_has_no_jars_that_it_does_not_need(spark):
    def jars_on_path(_: Iterator[int]) -> Iterator[list[str]]:
        import sys

        yield [entry for entry in sys.path if entry.endswith(".jar") and "spark-core" not in entry]

    assert spark.sparkContext._jsc.sc().getSchedulingMode().toString() == "FAIR"
    jars = spark.sparkContext.getConf().get("spark.jars") or ""
    assert "delta-spark" in jars
    assert "hadoop-client" not in jars
    assert run_tasks(spark, jars_on_path, 2) == [[], []]
    assert list(jars_on_path(iter([]))) == [[]]


@pytest.mark.spark
def test_workers_run_on_the_interpreter_of_the_driver_in_two_processes(spark):
    def where(_: int) -> tuple[str, str]:
        return sys.executable, str(Path.cwd())  # each executor has a folder of its own

    deadline = time.monotonic() + 120
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 3:  # the driver and two executors
        assert time.monotonic() < deadline
        time.sleep(0.1)
    seen = spark.sparkContext.parallelize(range(8), 8).map(where).collect()
    assert {interpreter for interpreter, _ in seen} == {sys.executable}
    assert len({folder for _, folder in seen}) == 2


@pytest.mark.spark
def test_a_signal_cancels_the_jobs_of_its_command_and_no_others_of_a_shared_jvm(spark, tmp_path, monkeypatch):
    class Args:
        master, conf = None, ()

    def wait(_: int) -> int:
        while not (tmp_path / "go").exists():
            time.sleep(0.05)
        return 1

    def command() -> int:
        return int(session_of(Args, "test")().sparkContext.parallelize(range(1), 1).map(wait).sum())

    def others() -> int:
        return int(spark.sparkContext.parallelize(range(1), 1).map(wait).sum())

    monkeypatch.setattr(jvm, "own_jvm", lambda: None)
    with ThreadPoolExecutor(2) as pool:
        try:
            ours, theirs = pool.submit(command), pool.submit(others)
            deadline = time.monotonic() + 120
            while len(spark.sparkContext.statusTracker().getActiveJobsIds()) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            jvm.end_jvm()
            with pytest.raises(Exception, match="cancelled"):
                ours.result(timeout=120)
        finally:
            (tmp_path / "go").touch()
        assert theirs.result(timeout=120) == 1


@pytest.mark.unit
def test_the_folder_of_an_application_is_kept_while_one_of_the_same_name_works_in_it(tmp_path):
    (tmp_path / "work" / "0").mkdir(parents=True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=tmp_path / "work" / "0") as executor:
        assert _is_worked_in(tmp_path / "work")
        executor.communicate()
    assert not _is_worked_in(tmp_path / "work")


@pytest.mark.spark
def test_an_unknown_master_is_named_and_a_session_leaves_nothing_behind_when_its_script_ends(tmp_path):
    script = (
        "import lakelens, lakelens.errors, sys\n"
        "try:\n"
        "    lakelens.spark_session('local[x]')\n"
        "except lakelens.errors.SessionError as error:\n"
        "    print(error)\n"
        "spark = lakelens.spark_session('local-cluster[1,1,512]', conf={'spark.executor.memory': '512m', "
        "'spark.ui.enabled': 'false'})\n"
        "print('started', file=sys.stderr, flush=True)\n"
        "print(spark.range(3).count(), spark.sparkContext.applicationId)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    *_, refused, last = done.stdout.splitlines()  # Ivy's words come before
    assert "on master 'local[x]'" in refused
    assert "Traceback" not in done.stderr
    rows, application = last.split()
    assert rows == "3"
    import pyspark

    assert not (Path(pyspark.__file__).parent / "work" / application).exists()
    assert list(tmp_path.iterdir()) == []
    assert "ERROR" not in done.stderr.rpartition("started\n")[2], done.stderr
