"""The driver dies or is interrupted: its ranks, and all that they have started, die too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leftovers import Watch, leaves_nothing

from lakelens.training.runner.processes import keeper

pytestmark = pytest.mark.system

DRIVER = """
import os, signal, sys
from lakelens.training.runner.runner import HorovodRunner

# nohup hands down that this is ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

def main(folder):
    import os, subprocess, time
    from pathlib import Path
    from lakelens.training.rank.process_context import current
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(folder, str(current().rank)).touch()
    time.sleep(600)

HorovodRunner(np=-2, env={"LAKELENS_TEST_TOKEN": sys.argv[1]}).run(main, folder=sys.argv[2])
"""


@pytest.fixture
def driver(tmp_path):
    """A driver in a process of its own, with two running ranks."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    folder = tmp_path / "ranks"
    folder.mkdir()
    with leaves_nothing() as watch:
        process = subprocess.Popen(
            [sys.executable, str(script), watch.token, str(folder)],
            stderr=subprocess.PIPE,
            text=True,
            env=with_temporary_files_in(watch),
        )
        deadline = time.monotonic() + 60
        while len(list(folder.iterdir())) < 2:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, watch
        process.kill()
        process.communicate()


def with_temporary_files_in(watch: Watch) -> dict[str, str]:
    """An environment in which the driver's own temporary files are looked for as well."""
    return {**os.environ, "TMPDIR": str(watch.temporary)}


def gone(watch: Watch) -> bool:
    """Waits until nothing of the job is left; only what would stay for ever fails, however loaded the machine is."""
    deadline = time.monotonic() + 60
    while watch.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    return watch.processes() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_no_rank_outlives_its_driver(driver, number):
    process, watch = driver
    assert len(watch.processes()) >= 6  # two keepers, two ranks, and what these started
    process.send_signal(number)
    assert gone(watch)


def test_a_stopped_drivers_ranks_go_on_until_it_is_killed(driver):
    process, watch = driver
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    assert len(watch.processes()) >= 6
    process.send_signal(signal.SIGKILL)
    assert gone(watch)


def test_an_interrupted_driver_says_so_in_its_own_traceback(driver):
    process, watch = driver
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=240)
    assert "KeyboardInterrupt" in error
    assert process.returncode != 0
    assert gone(watch)


def test_a_fork_of_the_driver_that_keeps_its_pipes_open_does_not_keep_ranks_alive(tmp_path):
    script = tmp_path / "driver.py"
    # A thread of the user forks while the job runs, as multiprocessing does; the fork inherits every descriptor.
    script.write_text(
        "import os, sys, threading, time\n"
        "def fork():\n"
        "    time.sleep(1.0)\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(600); os._exit(0)\n"
        "threading.Thread(target=fork, daemon=True).start()\n" + DRIVER
    )
    folder = tmp_path / "ranks"
    folder.mkdir()
    with leaves_nothing() as watch:
        process = subprocess.Popen(
            [sys.executable, str(script), watch.token, str(folder)],
            start_new_session=True,
            env=with_temporary_files_in(watch),
        )
        deadline = time.monotonic() + 60
        while len(list(folder.iterdir())) < 2 or len(children(process.pid)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
        process.wait()
        try:
            assert gone(watch)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_processes_are_found_though_the_name_of_one_is_no_text():
    naming = "import pathlib; pathlib.Path('/proc/self/comm').write_bytes(b'\\xff'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", naming], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        found = keeper.descendants(os.getpid())
        process.communicate("\n")
    assert process.pid in found


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if Path(f"/proc/{pid}").exists() else []
