"""What ends ranks, as processes on the driver and as a barrier stage on each kind of session."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakelens.errors import RankFailedError
from lakelens.spark.port import is_connect
from lakelens.training.runner.placement.job import Job
from lakelens.training.runner.processes import keeper
from lakelens.training.runner.spark.barrier_stage import BarrierStage

pytestmark = [pytest.mark.timeout(900), pytest.mark.sessions("driver", "classic", "connect")]

on_executors = pytest.mark.sessions("classic", "connect")
# What a client of Connect gets of a failure, or of a start, is the same whatever it was.
not_on_connect = pytest.mark.sessions("driver", "classic")


def test_a_rank_that_raises_fails_the_job_with_its_traceback_first(runner):
    def main():
        import time

        from lakelens.training.rank.process_context import current

        print("about to fail")
        if current().rank == 1:
            raise ValueError("boom")
        time.sleep(600)

    with pytest.raises(RankFailedError) as caught:
        runner().run(main)
    error = caught.value
    assert str(error).startswith("Traceback (most recent call last)")
    assert error.__cause__ is None  # Python would print Spark's stack traces before the user's
    assert (error.rank, error.reason, error.log[0]) == (1, "raised", "about to fail")
    assert (error.exit_code, error.signal_name) == (1, None)
    assert "worker.py" not in str(error).split("rank 1 of 2")[0]
    assert "ValueError: boom" in error.traceback
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rank, copy.log) == (str(error), 1, error.log)


@not_on_connect
def test_a_killed_rank_ends_the_job(runner):
    def main():
        import os
        import signal
        import time

        from lakelens.training.rank.process_context import current

        print("last words")
        if current().rank == 0:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    before = keeper.oom_kills()
    with pytest.raises(RankFailedError, match=r"rank 0 of 2 on .* was ended by SIGKILL") as caught:
        runner().run(main)
    error = caught.value
    assert (error.rank, error.signal_name, error.log) == (0, "SIGKILL", ["last words"])
    assert error.host not in (None, "unknown host")
    if keeper.oom_kills() == before:
        assert "killed by the kernel" not in str(error)


@pytest.mark.sessions("connect")
def test_a_failed_job_is_started_again_and_the_function_sees_its_attempt(runner, capfd):
    def main():
        from lakelens.training.rank.process_context import current

        if current().attempt == 0 and current().rank == 1:
            raise ValueError("first time")
        return current().attempt

    assert runner(max_restarts=1).run(main) == 1
    assert "Starting again (1 of 1 restarts)" in capfd.readouterr().err


@not_on_connect
def test_a_stopped_rank_ends_the_job_within_the_stall_timeout(runner):
    def main():
        import os
        import signal
        import time

        from lakelens.training.rank.process_context import current

        if current().rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)

    with pytest.raises(
        RankFailedError, match=r"rank 1 of 2 .* was stopped by SIGSTOP and did not continue for \d+ s"
    ) as caught:
        runner(stall_timeout_s=2).run(main)
    assert caught.value.reason == "stopped"


@on_executors
def test_a_killed_python_worker_ends_the_job(runner, spark):
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

    # The client of a Connect session learns that the query has ended, not which worker was lost.
    words = "before every rank had returned" if is_connect(spark) else r"rank 1 of 2 .* lost contact with the driver"
    with pytest.raises(RankFailedError, match=words) as caught:
        runner().run(main)
    assert caught.value.reason == "lost"


def test_an_interrupted_driver_ends_the_ranks(runner, watch):
    def main():
        import time

        time.sleep(600)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def when_all_run() -> None:
        while len(watch.processes()) < 4:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGALRM)

    previous = signal.signal(signal.SIGALRM, interrupt)
    timer = threading.Thread(target=when_all_run)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            runner().run(main)
    finally:
        timer.join()
        signal.signal(signal.SIGALRM, previous)


@on_executors
def test_runners_at_once_share_the_slots(runner, spark, capfd):
    def main():
        import time

        from lakelens.training.rank.process_context import current

        time.sleep(2)
        return current().size

    sizes = [2, 2] if is_connect(spark) else [3, 2, 2]  # of 2 or 4 slots
    with ThreadPoolExecutor(len(sizes)) as pool:
        jobs = [pool.submit(runner(size, name=f"job-{size}").run, main) for size in sizes]
        assert [job.result(timeout=200) for job in jobs] == sizes
    assert "waits for" in capfd.readouterr().err


@on_executors
def test_a_job_that_is_cancelled_before_its_query_is_sent_never_starts(spark, watch):
    ends = queue.SimpleQueue()
    stage = BarrierStage(spark, Job(name="job", size=2, payload=b"", stall_timeout_s=60), 60.0, ends.put)
    stage.start("", 0, want_lines=False)
    stage.cancel()
    assert ends.get(timeout=60).error is not None
    assert not stage.has_slots()
