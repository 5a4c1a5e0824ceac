"""Ranks on the driver: values, logs, failures, and that nothing stays."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from leftovers import Watch, leaves_nothing

from lakelens.errors import InvalidArgumentError, RankFailedError, UnpicklableFunctionError
from lakelens.training.runner.placement.conversation import Controls
from lakelens.training.runner.processes.gloo_store import LoopbackStore
from lakelens.training.runner.processes.process_watch import ProcessWatch
from lakelens.training.runner.processes.rank_process import RankProcess
from lakelens.training.runner.runner import HorovodRunner
from lakelens.training.runner.supervisor import Supervisor

pytestmark = pytest.mark.system


@pytest.fixture
def watch() -> Iterator[Watch]:
    with leaves_nothing() as watch:
        yield watch


def runner(np: int, watch: Watch, **options) -> HorovodRunner:
    return HorovodRunner(np=np, env=watch.env, **options)


def test_each_rank_is_a_process_whose_lines_are_shown_and_rank_zeros_value_comes_back(watch, tmp_path, capfd):
    def main(folder, base):
        import os
        from pathlib import Path

        from lakelens.training.rank.process_context import current

        Path(folder, str(current().rank)).write_text(f"{os.getpid()} {os.getsid(0)}")
        print(f"out {current().rank}")
        print(f"err {current().rank}", file=sys.stderr)
        print("no newline at the end", end="")
        return base + current().rank, current().size, os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"]

    mine = {**watch.env, "HOROVOD_GLOO_TIMEOUT_SECONDS": "300"}  # goes before lakelens' own
    assert HorovodRunner(np=-3, env=mine).run(main, folder=str(tmp_path), base=40) == (40, 3, "300")
    pairs = [path.read_text().split() for path in sorted(tmp_path.iterdir())]
    assert len({pid for pid, _ in pairs} | {str(os.getpid())}) == 4
    assert all(pid == session for pid, session in pairs)
    lines = capfd.readouterr().out.splitlines()
    for rank in range(3):
        assert f"[{rank}]<stdout> out {rank}" in lines
        assert f"[{rank}]<stderr> err {rank}" in lines
        assert f"[{rank}]<stdout> no newline at the end" in lines


def test_a_large_value_comes_back_whole_and_can_be_written_to(watch):
    def main():
        import numpy as np

        return np.arange(20 << 20, dtype=np.uint8), b"a" * (3 << 20), "ü" * (2 << 20), bytearray(2 << 20), [1, None]

    array, raw, text, buffer, small = runner(-1, watch).run(main)
    assert int(array[300]) == 300 % 256
    assert array.nbytes == 20 << 20
    array[0] = 7
    assert (raw, text, buffer, small) == (b"a" * (3 << 20), "ü" * (2 << 20), bytearray(2 << 20), [1, None])


def test_what_cannot_be_sent_is_named_before_anything_starts(watch):
    import threading

    lock = threading.Lock()

    def main(options):
        return lock, options

    with pytest.raises(UnpicklableFunctionError, match=r"variable 'lock' \(_thread.lock\)"):
        runner(-2, watch).run(main, options={})

    def other(options):
        return options

    with pytest.raises(InvalidArgumentError, match="takes a function, got int: 3"):
        runner(-1, watch).run(3)
    with pytest.raises(UnpicklableFunctionError, match=r"argument options=.* -> \['deep'\] -> \[1\]"):
        runner(-2, watch).run(other, options={"deep": [1, lock]})


def test_log_callback_only_shows_only_what_is_sent_and_cuts_long_messages(watch, capfd):
    def main():
        from lakelens.training.rank.process_context import current, log_to_driver

        print("not for the driver")
        log_to_driver(f"from {current().rank}")
        log_to_driver("x" * 5000)

    runner(-2, watch, driver_log_verbosity="log_callback_only").run(main)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == ["from 0", "from 1", "x" * 4000, "x" * 4000]


def test_lines_are_shown_while_the_rank_runs(watch, capfd, tmp_path, monkeypatch):
    seen = tmp_path / "seen"

    def main(seen):
        import time
        from pathlib import Path

        print("early")
        while not Path(seen).exists():  # only a line that is shown now lets the rank end
            time.sleep(0.05)

    monkeypatch.setattr("lakelens.training.runner.runner._print_line", lambda *_: seen.touch())
    runner(-1, watch, driver_log_verbosity="all").run(main, seen=str(seen))


def test_a_rank_looks_for_modules_where_the_driver_does_but_not_in_sparks_jars(watch, tmp_path, monkeypatch):
    (tmp_path / "on_the_drivers_path.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "io.delta_delta-storage.jar"))

    def main():
        import on_the_drivers_path  # noqa: F401

        return [entry for entry in sys.path if entry.endswith(".jar")]

    assert runner(-1, watch).run(main) == []


def test_what_a_rank_has_not_closed_is_written_when_it_ends(watch, tmp_path):
    def main(folder):
        import atexit
        from pathlib import Path

        class Holder:
            pass

        holder = Holder()
        holder.itself = holder  # garbage that only a collection would find
        holder.file = Path(folder, "in garbage").open("w")  # noqa: SIM115 - not closed, that is the point
        holder.file.write("written")
        atexit.register(Path(folder, "at exit").write_text, "written")

    runner(-1, watch).run(main, folder=str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "in garbage": "written",
        "at exit": "written",
    }


def test_modules_are_imported_before_the_function_is_loaded(watch):
    def main(main):
        return main, "colorsys" in sys.modules, "no_such_module" in sys.modules

    preload = ["colorsys", "no_such_module"]
    assert HorovodRunner(np=-1, preload=preload).run(main, main=7) == (7, True, False)


def test_whatever_a_rank_has_started_ends_with_it(watch, tmp_path):
    def main(folder):
        import os
        import subprocess
        import time
        from pathlib import Path

        subprocess.Popen(["sleep", "600"])
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & wait"])
        if os.fork() == 0:  # a daemon: its parent is gone, its session its own, and it ignores the soft end
            os.setsid()
            if os.fork() == 0:
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                Path(folder, "ready").touch()
                time.sleep(600)
            os._exit(0)
        while not Path(folder, "ready").exists():
            time.sleep(0.01)
        return "done"

    assert runner(-1, watch).run(main, folder=str(tmp_path)) == "done"
    assert watch.processes() == []


def test_finally_blocks_run_at_the_soft_end_and_a_rank_that_ignores_it_is_ended_hard(watch, tmp_path):
    def main(folder):
        import time
        from pathlib import Path

        from lakelens.training.rank.process_context import current

        if current().rank == 1:
            while len(list(Path(folder).iterdir())) < 2:
                time.sleep(0.01)
            raise ValueError("stop")
        if current().rank == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            Path(folder, str(current().rank)).touch()
            time.sleep(600)
        finally:
            Path(folder, f"cleaned up {current().rank}").touch()

    with pytest.raises(RankFailedError, match="ValueError: stop"):
        runner(-3, watch).run(main, folder=str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"0", "2", "cleaned up 2"}
    assert watch.processes() == []


def test_a_rank_whose_threads_never_end_does_not_hold_up_the_job(watch, monkeypatch):
    monkeypatch.setattr("lakelens.training.runner.processes.process_watch.EXIT_GRACE_S", 1.0)

    def main():
        import threading
        import time

        threading.Thread(target=time.sleep, args=(600,)).start()
        return "value"

    assert runner(-1, watch).run(main) == "value"


def test_a_job_that_fails_at_each_start_says_how_often_it_was_started(watch):
    def main():
        from lakelens.training.rank.process_context import current

        raise ValueError(f"attempt {current().attempt}")

    with pytest.raises(RankFailedError, match=r"attempt 1\n(.|\n)*The job was started 2 times"):
        runner(-2, watch, max_restarts=1).run(main)


def test_an_error_of_the_driver_ends_the_job_as_it_is(watch):
    def main():
        import time

        from lakelens.training.rank.process_context import ask

        ask({"step": 7})
        time.sleep(600)

    with pytest.raises(KeyError, match="wanted"):
        runner(-2, watch).run_with(main, {}, on_question=lambda rank, body: body["wanted"])
    assert watch.processes() == []


def test_a_job_that_the_driver_ends_leaves_nothing_and_is_not_started_again(watch, capfd):
    def main():
        import time

        from lakelens.training.rank.process_context import log_to_driver

        log_to_driver("runs")
        time.sleep(600)

    controls = Controls()
    with pytest.raises(RankFailedError, match="the job was ended by the driver") as caught:
        runner(-2, watch, max_restarts=3).run_with(main, {}, controls=controls, on_message=lambda _: controls.end())
    assert caught.value.reason == "cancelled"
    assert watch.processes() == []
    assert "Starting again" not in capfd.readouterr().err


def test_a_world_of_one_never_imports_horovod(watch):
    def main():
        import lakelens.hvd as hvd

        hvd.init()
        hvd.barrier()
        value = hvd.broadcast_object({"a": 1}), hvd.allgather_object(2), hvd.rank(), hvd.size(), hvd.local_rank()
        hvd.shutdown()
        return value, any(name.split(".")[0] in ("horovod", "pyspark") for name in sys.modules)

    assert runner(-1, watch).run(main) == (({"a": 1}, [2], 0, 1, 0), False)


def test_many_starts_in_a_row_leave_nothing_that_a_later_one_would_stumble_over(watch):
    def main():
        return 1

    # One descriptor that each left would be more than `watch` allows.
    for _ in range(5):
        assert runner(-2, watch).run(main) == 1
    gc.collect()
    assert [
        kept for kept in gc.get_objects() if type(kept) in (RankProcess, ProcessWatch, Supervisor, LoopbackStore)
    ] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"np": 1.5}, "np=1.5: give a whole number"),
        ({"np": True}, "np=True: give a whole number"),
        ({"np": -1, "driver_log_verbosity": "some"}, "verbosity='some' is not known; use one of 'all', 'log_callback_"),
        ({"np": -1, "stall_timeout_s": 0}, "stall_timeout_s=0: must be a number of at least 1"),
        ({"np": -1, "stall_timeout_s": math.inf}, "stall_timeout_s=inf: must be a number of at most 1e.09"),
        ({"np": -1, "slots_wait_s": math.nan}, "slots_wait_s=nan: must be a number of at least 0"),
        ({"np": -1, "max_restarts": -1}, "max_restarts=-1: give a whole number of at least 0"),
        ({"np": -1, "preload": "tensorflow"}, "give a list of module names"),
        ({"np": -1, "preloads": []}, "no option 'preloads'; did you mean 'preload'"),
        ({"np": -1, "env": {"A": 1}}, r"env\['A'\]=1: environment variables are text"),
    ],
)
def test_arguments_that_break_a_rule_are_refused(arguments, words):
    with pytest.raises(InvalidArgumentError, match=words):
        HorovodRunner(**arguments)
