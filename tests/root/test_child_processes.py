"""What a test run has started ends with it, also if it is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

RUN = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from child_processes import ending_with_this_process
server = subprocess.Popen(ending_with_this_process(["sleep", "600"]))
print(server.pid, flush=True)
server.wait()
"""


@pytest.mark.system
def test_a_server_ends_with_the_run_that_was_killed() -> None:
    command = [sys.executable, "-c", RUN, str(Path(__file__).parents[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        server = psutil.Process(int(run.stdout.readline()))
        run.kill()
    assert psutil.wait_procs([server], timeout=30)[1] == []
