"""Ranks as one barrier stage on a real two-executor Spark."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator

import pytest
from child_processes import descriptors_of_children
from leftovers import Watch, leaves_nothing, listening

from lakelens.errors import LakelensError, NotEnoughSlotsError, RankFailedError, SessionError
from lakelens.training.experiment.strategies import TrialRunner
from lakelens.training.runner import runner as runner_module
from lakelens.training.runner.processes.rank_process import append
from lakelens.training.runner.runner import HorovodRunner
from lakelens.training.runner.spark import preflight, stage_ranks
from lakelens.training.runner.spark.slots import registered_now, slots_now, total_slots
from lakelens.training.runner.terms import EXPERIMENT_TERMS

pytestmark = pytest.mark.spark


@pytest.fixture
def watch(spark) -> Iterator[Watch]:
    # A first task starts Spark's Python daemons, which stay.
    spark.sparkContext.parallelize(range(4), 4).map(lambda x: x).count()
    with leaves_nothing() as watch:
        yield watch


def runner(np: int, watch: Watch, **options) -> HorovodRunner:
    return HorovodRunner(np=np, env=watch.env, **options)


def no_job_runs(spark) -> bool:
    deadline = time.monotonic() + 60
    while spark.sparkContext.statusTracker().getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not spark.sparkContext.statusTracker().getActiveJobsIds()


def test_ranks_run_in_the_executors_and_rank_zeros_value_comes_back(watch, spark, capfd):
    def main(x):
        import os

        from lakelens.training.rank.process_context import current, log_to_driver

        print("not shown")
        log_to_driver(f"{current().rank} of {current().size}")
        return x + 1, os.getppid()

    value, _ = runner(2, watch).run(main, x=41)
    assert value == 42
    assert sorted(capfd.readouterr().out.splitlines()) == ["0 of 2", "1 of 2"]


def test_zero_is_every_slot_of_the_cluster_and_lines_are_streamed(watch, capfd):
    def main():
        from lakelens.training.rank.process_context import current

        print(f"rank {current().rank}")
        return current().size

    assert runner(0, watch, driver_log_verbosity="all").run(main) == 4
    assert sorted(capfd.readouterr().out.splitlines()) == [f"[{rank}]<stdout> rank {rank}" for rank in range(4)]


def test_lines_that_the_driver_has_no_time_to_print_are_in_a_file_that_the_notice_names(
    watch, capfd, tmp_path, monkeypatch
):
    shown = []

    def slow_terminal(rank, stream, text):
        wait_until(lambda: list(tmp_path.iterdir()))
        shown.append(text)

    def main(count):
        for number in range(count):
            print(number)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(runner_module, "_print_line", slow_terminal)
    runner(1, watch, driver_log_verbosity="all").run(main, count=60_000)
    (path,) = tmp_path.iterdir()
    assert f"lines and messages were not shown, and are in {path}" in capfd.readouterr().err
    kept = [line.removeprefix("[0]<stdout> ") for line in path.read_text().splitlines()]
    assert kept
    assert sorted(map(int, shown + kept)) == list(range(60_000))
    assert shown == sorted(shown, key=int)


def test_a_value_larger_than_the_heaps_comes_back(watch):
    def main():
        import numpy as np

        return {"weights": np.full(100 << 20, 7, np.uint8), "raw": b"a" * (150 << 20)}

    value = runner(2, watch).run(main)
    assert value["weights"].nbytes == 100 << 20
    assert set(value["weights"][:: 1 << 20]) == {7}
    assert len(value["raw"]) == 150 << 20


def test_a_value_that_the_disk_takes_slowly_is_waited_for_though_spark_is_done(watch, monkeypatch):
    def slowly(file, content):
        time.sleep(0.5)
        append(file, content)

    def main():
        import numpy as np

        return np.full(6 << 20, 7, np.uint8)

    monkeypatch.setattr(stage_ranks, "append", slowly)
    assert runner(2, watch).run(main).nbytes == 6 << 20


def test_a_large_argument_reaches_every_rank(watch):
    payload = os.urandom(8 << 20)

    def main(data):
        import hashlib

        return hashlib.sha256(data).hexdigest()

    import hashlib

    assert runner(2, watch).run(main, data=payload) == hashlib.sha256(payload).hexdigest()


def test_one_rank_on_the_cluster_needs_no_horovod(watch):
    def main():
        import sys

        import lakelens.hvd as hvd

        hvd.init()
        return hvd.size(), any(name.startswith("horovod") for name in sys.modules)

    assert runner(1, watch).run(main) == (1, False)


def test_more_ranks_than_slots_is_refused_with_both_numbers(watch, spark):
    store = spark.sparkContext._jsc.sc().statusStore()
    before = store.jobsList(None).size()
    # Between the two the message names executors that other tests have ended.
    with pytest.raises(
        NotEnoughSlotsError, match=r"np=9: the ranks need 9 slots and the cluster has 4\b.*use np=4 or fewer"
    ):
        runner(9, watch).run(lambda: None)
    with pytest.raises(NotEnoughSlotsError, match=r"slots_per_trial=9: .*use slots_per_trial=4 or fewer"):
        TrialRunner(np=9, slots_wait_s=0.0, spark=spark).run(lambda: None)
    assert store.jobsList(None).size() == before  # a job of Spark's would look for slots for ten minutes


def test_a_rank_that_raises_fails_the_job_with_its_traceback_first(watch, spark):
    def main():
        import time

        from lakelens.training.rank.process_context import current

        print("about to fail")
        if current().rank == 1:
            raise ValueError("boom")
        time.sleep(600)

    with pytest.raises(RankFailedError) as caught:
        runner(2, watch).run(main)
    error = caught.value
    assert str(error).startswith("Traceback (most recent call last)")
    assert error.__cause__ is None  # Python would print Spark's stack traces before the user's
    assert (error.rank, error.reason) == (1, "raised")
    assert error.log[0] == "about to fail"
    assert no_job_runs(spark)


def test_a_killed_rank_ends_the_job(watch, spark):
    def main():
        import os
        import signal
        import time

        from lakelens.training.rank.process_context import current

        if current().rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    with pytest.raises(RankFailedError, match=r"rank 0 of 2 on .* was ended by SIGKILL") as caught:
        runner(2, watch).run(main)
    assert caught.value.host not in (None, "unknown host")
    assert no_job_runs(spark)


def test_a_stopped_rank_ends_the_job(watch):
    def main():
        import os
        import signal
        import time

        from lakelens.training.rank.process_context import current

        if current().rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)

    with pytest.raises(RankFailedError, match=r"rank 1 of 2 .* was stopped by SIGSTOP"):
        runner(2, watch, stall_timeout_s=2).run(main)


def test_a_killed_python_worker_ends_the_job(watch, spark):
    def main():
        import os
        import time
        from pathlib import Path

        from lakelens.training.rank.process_context import current

        if current().rank == 1:
            keeper = os.getppid()
            worker = int(Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(worker, 9)
        time.sleep(600)

    with pytest.raises(RankFailedError, match=r"rank 1 of 2 .* lost contact with the driver") as caught:
        runner(2, watch).run(main)
    assert caught.value.reason == "lost"
    assert no_job_runs(spark)


def run_in_thread(call):
    result = {}

    def body():
        try:
            result["value"] = call()
        except BaseException as error:  # noqa: BLE001 - handed to the asserting thread
            result["error"] = error

    thread = threading.Thread(target=body)
    thread.start()
    return thread, result


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def sleep_for_ever():
    def main():
        import time

        time.sleep(600)

    return main


def test_cancelling_the_callers_job_group_ends_the_ranks(watch, spark):
    def call():
        spark.sparkContext.setJobGroup("a-cell", "a notebook's cell", interruptOnCancel=True)
        return runner(2, watch).run(sleep_for_ever())

    thread, result = run_in_thread(call)
    wait_until(lambda: len(watch.processes()) >= 4)
    spark.sparkContext.cancelJobGroup("a-cell")
    thread.join(timeout=200)
    assert isinstance(result["error"], RankFailedError)
    assert "cancelled" in str(result["error"]) or "lost contact" in str(result["error"])


def test_an_interrupted_driver_ends_the_ranks_and_the_stage(watch, spark):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    timer = threading.Thread(
        target=lambda: (wait_until(lambda: len(watch.processes()) >= 4), os.kill(os.getpid(), signal.SIGALRM))
    )
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            runner(2, watch).run(sleep_for_ever())
    finally:
        timer.join()
        signal.signal(signal.SIGALRM, previous)
    assert watch.processes() == []
    assert no_job_runs(spark)


def test_two_runners_at_once_share_the_slots(watch, spark, capfd):
    def main(seconds):
        import time

        from lakelens.training.rank.process_context import current

        time.sleep(seconds)
        return current().size

    calls = [run_in_thread(lambda np=np: runner(np, watch, name=f"job-{np}").run(main, seconds=2)) for np in (3, 2, 2)]
    for thread, _ in calls:
        thread.join(timeout=200)
    assert [result.get("value", result.get("error")) for _, result in calls] == [3, 2, 2]
    assert "waits for" in capfd.readouterr().err


def test_a_runner_that_waits_too_long_says_for_what(watch, spark):
    thread, result = run_in_thread(lambda: runner(3, watch, name="the-long-one").run(sleep_for_ever()))
    wait_until(lambda: len(watch.processes()) >= 6)
    with pytest.raises(NotEnoughSlotsError, match="needs 2 slots; the-long-one holds 3 and 1 of 4 are free after 1 s"):
        runner(2, watch, slots_wait_s=1, name="waiting").run(sleep_for_ever())
    spark.sparkContext.cancelAllJobs()
    thread.join(timeout=200)
    assert isinstance(result["error"], RankFailedError)


def until(path):
    """A function that returns once a file is there."""

    def main():
        import time
        from pathlib import Path

        while not Path(path).exists():
            time.sleep(0.05)

    return main


def test_slots_that_other_spark_jobs_hold_are_waited_for_with_a_bound(watch, spark, tmp_path):
    released = tmp_path / "released"
    wait = until(str(released))

    def occupy():
        return spark.sparkContext.parallelize(range(4), 4).map(lambda _: wait()).count()

    thread, _ = run_in_thread(occupy)
    wait_until(lambda: len(spark.sparkContext.statusTracker().getActiveStageIds()) > 0)
    with pytest.raises(
        NotEnoughSlotsError, match=r"none of 2 tasks could start within 1 s.*1 other Spark jobs are running"
    ):
        runner(2, watch, slots_wait_s=1).run(sleep_for_ever())
    released.touch()
    thread.join(timeout=200)
    assert runner(2, watch).run(lambda: "later") == "later"


def test_the_spark_ui_shows_what_runs(watch, spark, tmp_path):
    released = tmp_path / "released"
    thread, _ = run_in_thread(lambda: runner(2, watch, name="night-training").run(until(str(released))))
    wait_until(lambda: len(watch.processes()) >= 4)
    tracker = spark.sparkContext.statusTracker()
    store = spark.sparkContext._jsc.sc().statusStore()
    seen = [store.job(job).description().get() for job in tracker.getActiveJobsIds()]
    released.touch()
    thread.join(timeout=200)
    assert seen == ["lakelens: night-training, 2 ranks"]


def test_nothing_listens_beyond_loopback_while_a_job_runs_on_one_machine(watch, spark, tmp_path):
    released = tmp_path / "released"
    before = listening()
    thread, _ = run_in_thread(lambda: runner(2, watch).run(until(str(released))))
    wait_until(lambda: len(watch.processes()) >= 4)
    during = listening() - before
    released.touch()
    thread.join(timeout=200)
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


def test_a_failed_job_is_started_again_on_the_cluster(watch):
    def main():
        from lakelens.training.rank.process_context import current

        if current().attempt == 0 and current().rank == 1:
            raise ValueError("first time")
        return current().attempt

    assert runner(2, watch, max_restarts=1).run(main) == 1


def test_executors_that_cannot_import_the_functions_module_say_so(watch, tmp_path, monkeypatch):
    (tmp_path / "only_on_the_driver.py").write_text("def main():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_on_the_driver

    with pytest.raises(LakelensError, match=r"cannot import 'only_on_the_driver'.*--py-files"):
        runner(2, watch).run(only_on_the_driver.main)


def test_repeated_starts_leave_nothing_in_the_executors(watch, spark):
    def main():
        return 1

    runner(2, watch).run(main)
    descriptors = descriptors_of_children()
    for _ in range(8):
        runner(2, watch).run(main)
    wait_until(lambda: descriptors_of_children() <= descriptors + 16)


def test_a_lost_executor_ends_the_job_and_a_restart_finishes_it(spark):
    def main():
        import os
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
        assert runner(4, watch, max_restarts=1, slots_wait_s=60).run(main) == 1
