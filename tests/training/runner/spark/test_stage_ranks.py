"""Ranks as one barrier stage on a real two-executor Spark."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from child_processes import descriptors_of_children
from leftovers import leaves_nothing, listening, wait_until

from lakelens.errors import LakelensError, NotEnoughSlotsError, RankFailedError, SessionError
from lakelens.training.experiment.strategies import TrialRunner
from lakelens.training.runner.placement.job import EXPERIMENT_TERMS
from lakelens.training.runner.processes.rank_process import append
from lakelens.training.runner.runner import HorovodRunner
from lakelens.training.runner.spark import preflight, stage_ranks
from lakelens.training.runner.spark.slots import registered_now, slots_now, total_slots

pytestmark = pytest.mark.spark


def test_ranks_run_in_the_executors_and_rank_zeros_value_comes_back(watch, capfd):
    def main(x):
        from lakelens.training.rank.process_context import current, log_to_driver

        print("not shown")
        log_to_driver(f"{current().rank} of {current().size}")
        return x + 1, os.getppid()

    value, _ = HorovodRunner(np=2, env=watch.env).run(main, x=41)
    assert value == 42
    said = capfd.readouterr()
    assert sorted(said.out.splitlines()) == ["0 of 2", "1 of 2"]
    notices = [line for line in said.err.splitlines() if line.startswith("lakelens: main: ")]
    assert [notices[-2], notices[-1].startswith("lakelens: main: done in ")] == ["lakelens: main: 2 ranks run", True]


def test_zero_is_every_slot_where_lines_are_streamed_and_a_large_argument_reaches_every_rank(runner, capfd):
    def main(data):
        from lakelens.training.rank.process_context import current

        print(f"rank {current().rank} got {len(data)}, {data[-1]}")
        return current().size

    assert runner(0, driver_log_verbosity="all").run(main, data=bytes(8 << 20) + b"a") == 4
    said = [f"[{rank}]<stdout> rank {rank} got {(8 << 20) + 1}, 97" for rank in range(4)]
    assert sorted(capfd.readouterr().out.splitlines()) == said


def test_a_value_larger_than_the_heaps_comes_back(runner):
    def main():
        import numpy as np

        return {"weights": np.full(100 << 20, 7, np.uint8), "raw": b"a" * (150 << 20)}

    value = runner(2).run(main)
    assert value["weights"].nbytes == 100 << 20
    assert set(value["weights"][:: 1 << 20]) == {7}
    assert len(value["raw"]) == 150 << 20


def test_a_value_that_the_disk_takes_slowly_is_waited_for_though_spark_is_done(runner, monkeypatch):
    def slowly(file, content):
        time.sleep(0.5)
        append(file, content)

    def main():
        import numpy as np

        return np.full(6 << 20, 7, np.uint8)

    monkeypatch.setattr(stage_ranks, "append", slowly)
    assert runner(2).run(main).nbytes == 6 << 20


def test_more_ranks_than_slots_is_refused_with_both_numbers(runner, spark):
    store = spark.sparkContext._jsc.sc().statusStore()
    before = store.jobsList(None).size()
    # Between the two the message names executors that other tests have ended.
    with pytest.raises(
        NotEnoughSlotsError, match=r"np=9: the ranks need 9 slots and the cluster has 4\b.*use np=4 or fewer"
    ):
        runner(9).run(lambda: None)
    with pytest.raises(NotEnoughSlotsError, match=r"slots_per_trial=9: .*use slots_per_trial=4 or fewer"):
        TrialRunner(np=9, slots_wait_s=0.0, spark=spark).run(lambda: None)
    assert store.jobsList(None).size() == before  # a job of Spark's would look for slots for ten minutes


def started(call):
    """Calls something in a thread of its own."""
    return ThreadPoolExecutor(1).submit(call)


def sleep_for_ever():
    def main():
        import time

        time.sleep(600)

    return main


def test_a_runner_that_waits_too_long_says_for_what_and_the_callers_job_group_cancels_the_ranks(runner, watch, spark):
    def call():
        spark.sparkContext.setJobGroup("a-cell", "a notebook's cell", interruptOnCancel=True)
        return runner(3, name="the-long-one").run(sleep_for_ever())

    job = started(call)
    wait_until(lambda: len(watch.processes()) >= 6)
    with pytest.raises(NotEnoughSlotsError, match="needs 2 slots; the-long-one holds 3 and 1 of 4 are free after 1 s"):
        runner(2, slots_wait_s=1, name="waiting").run(sleep_for_ever())
    spark.sparkContext.cancelJobGroup("a-cell")
    with pytest.raises(RankFailedError, match=r"cancelled|lost contact"):
        job.result(timeout=200)


def until(path):
    """A function that returns once a file is there."""

    def main():
        import time
        from pathlib import Path

        while not Path(path).exists():
            time.sleep(0.05)

    return main


def test_slots_that_other_spark_jobs_hold_are_waited_for_with_a_bound(runner, spark, tmp_path):
    released = tmp_path / "released"
    wait = until(str(released))

    def occupy():
        return spark.sparkContext.parallelize(range(4), 4).map(lambda _: wait()).count()

    occupied = started(occupy)
    wait_until(lambda: len(spark.sparkContext.statusTracker().getActiveStageIds()) > 0)
    with pytest.raises(
        NotEnoughSlotsError, match=r"none of 2 tasks could start within 1 s.*1 other Spark jobs are running"
    ):
        runner(2, slots_wait_s=1).run(sleep_for_ever())
    released.touch()
    occupied.result(timeout=200)
    assert runner(2).run(lambda: "later") == "later"


def test_a_running_job_is_named_in_the_spark_ui_and_listens_on_loopback_only(runner, watch, spark, tmp_path):
    released = tmp_path / "released"
    before = listening()
    job = started(lambda: runner(2, name="night-training").run(until(str(released))))
    wait_until(lambda: len(watch.processes()) >= 4)
    during = listening() - before
    store = spark.sparkContext._jsc.sc().statusStore()
    active = spark.sparkContext.statusTracker().getActiveJobsIds()
    seen = [store.job(job).description().get() for job in active]
    released.touch()
    assert seen == ["lakelens: night-training, 2 ranks"]
    job.result(timeout=200)
    assert {address for address, _ in during} <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_a_young_session_is_waited_for_and_an_old_one_is_not(spark):
    there = registered_now(spark)
    assert (there.executors, there.cores, slots_now(spark)) == (2, 4, 4)
    # Executors came after the session's start, and nothing has happened since the youngest.
    assert 0 < there.quiet_s < time.time() - spark.sparkContext._jsc.sc().startTime() / 1000
    assert registered_now(spark).quiet_s >= there.quiet_s
    assert total_slots(spark, wait_s=0.0) == 4
    # All that are expected are there, so that more slots are not waited for.
    assert total_slots(spark, wait_s=600.0, enough=99) == 4


def test_a_connect_session_is_known_by_its_type():
    class Session:
        __module__ = "pyspark.sql.connect.session"

    with pytest.raises(SessionError, match=r"Spark Connect session.* as a search does; run it on the cluster's driver"):
        preflight.require_classic(Session(), "a search")
    with pytest.raises(SessionError, match=r"ranks on executors need PySpark 4\.0 or later.* use np=-N for processes"):
        HorovodRunner(np=2, spark=Session()).run(print)  # type: ignore[arg-type]
    with pytest.raises(SessionError, match="strategy=horovod_local for processes on this machine"):
        preflight.require_progress(Session(), EXPERIMENT_TERMS)
    assert preflight.active_connect_session() is None


def test_executors_that_cannot_import_the_functions_module_say_so(runner, tmp_path, monkeypatch):
    (tmp_path / "only_on_the_driver.py").write_text("def main():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_on_the_driver

    with pytest.raises(LakelensError, match=r"cannot import 'only_on_the_driver'.*--py-files"):
        runner(2).run(only_on_the_driver.main)


def test_repeated_starts_leave_nothing_in_the_executors(runner, spark):
    def main():
        return 1

    runner(2).run(main)
    descriptors = descriptors_of_children()
    for _ in range(8):
        runner(2).run(main)
    wait_until(lambda: descriptors_of_children() <= descriptors + 16)


def test_a_lost_executor_ends_the_job_and_a_restart_finishes_it(spark):
    def main():
        import time
        from pathlib import Path

        from lakelens.training.rank.process_context import current

        if current().attempt == 0:
            if current().rank == 1:
                keeper = os.getppid()

                def parent(pid):
                    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

                executor = parent(parent(parent(keeper)))
                assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
                os.kill(executor, 9)
            time.sleep(600)
        return current().attempt

    # The cluster starts a new executor in the place of the lost one, with ports of its own.
    with leaves_nothing(same_process_tree=False) as watch:
        assert HorovodRunner(np=4, env=watch.env, max_restarts=1, slots_wait_s=60).run(main) == 1
