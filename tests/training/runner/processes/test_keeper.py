"""The driver dies or is interrupted: its ranks, and all that they have started, die too."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from leftovers import Watch, leaves_nothing, wait_until

from lakelens.training.runner.processes import keeper

pytestmark = pytest.mark.system

DRIVER = """
import sys
from lakelens.training.runner.runner import HorovodRunner

def main(folder):
    import os, subprocess, time
    from pathlib import Path
    from lakelens.training.rank.process_context import current
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(folder, str(current().rank)).touch()
    time.sleep(600)

HorovodRunner(np=-2, env={"LAKELENS_TEST_TOKEN": sys.argv[1]}).run(main, folder=sys.argv[2])
"""


@contextmanager
def driving(folder: Path, script: str) -> Iterator[tuple[subprocess.Popen[str], Watch]]:
    """A driver in a process group of its own, with two running ranks."""
    (folder / "driver.py").write_text(script)
    (folder / "ranks").mkdir()
    with leaves_nothing() as watch:
        process = subprocess.Popen(
            [sys.executable, str(folder / "driver.py"), watch.token, str(folder / "ranks")],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(watch.temporary)},  # the driver's own temporary files are looked for too
            start_new_session=True,
        )
        try:
            wait_until(lambda: len(list((folder / "ranks").iterdir())) == 2 or process.poll() is not None)
            assert process.poll() is None, process.communicate()[1]
            yield process, watch
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_a_stopped_drivers_ranks_go_on_until_it_is_killed(tmp_path):
    with driving(tmp_path, DRIVER) as (process, watch):
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        assert len(watch.processes()) >= 6  # two keepers, two ranks, and what these started
        process.send_signal(signal.SIGKILL)
        watch.wait_until_gone()


def test_an_interrupted_driver_says_so_in_its_own_traceback(tmp_path):
    with driving(tmp_path, DRIVER) as (process, watch):
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=240)
        assert "KeyboardInterrupt" in error
        assert process.returncode != 0
        watch.wait_until_gone()


# A thread of the user forks while the job runs, as multiprocessing does; the fork inherits every descriptor.
FORKING = """
import os, threading, time
def fork():
    time.sleep(1.0)
    if os.fork() == 0:
        time.sleep(600); os._exit(0)
threading.Thread(target=fork, daemon=True).start()
"""


def test_a_fork_of_the_driver_that_keeps_its_pipes_open_does_not_keep_ranks_alive(tmp_path):
    with driving(tmp_path, FORKING + DRIVER) as (process, watch):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: len(children.read_text().split()) >= 3)
        process.kill()
        process.wait()
        watch.wait_until_gone()


def test_processes_are_found_though_the_name_of_one_is_no_text():
    naming = "import pathlib; pathlib.Path('/proc/self/comm').write_bytes(b'\\xff'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", naming], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        found = keeper.descendants(os.getpid())
        process.communicate("\n")
    assert process.pid in found
