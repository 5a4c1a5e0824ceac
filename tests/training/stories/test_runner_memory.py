"""A rank that the kernel kills for memory: the error says so and nothing stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from leftovers import leaves_nothing

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.memory_group import MemoryGroup, MemoryGroupError
from lakelens.training.runner.processes import keeper

pytestmark = pytest.mark.system

LIMIT_BYTES = 400 << 20


DRIVER = """
import json, os, sys
from pathlib import Path
Path(sys.argv[1]).write_text(str(os.getpid()))
from lakelens.errors import RankFailedError
from lakelens.training.runner.runner import HorovodRunner

def main():
    import time
    from lakelens.training.rank.process_context import current
    print("about to take memory", flush=True)
    held = []
    while current().rank == 1:
        held.append(b"x" * (16 << 20))
    time.sleep(600)

try:
    HorovodRunner(np=-2, env={"LAKELENS_TEST_TOKEN": sys.argv[2], "TMPDIR": sys.argv[3]}).run(main)
except RankFailedError as error:
    print(json.dumps([str(error), error.rank, error.signal_name, error.log]))
"""


def test_a_rank_that_the_kernel_kills_for_memory_is_said_to_be_out_of_memory():
    try:
        group = MemoryGroup(LIMIT_BYTES)
    except MemoryGroupError as error:
        pytest.skip(str(error))
    with group, leaves_nothing() as watch:
        command = [sys.executable, "-c", DRIVER, str(group.processes), watch.token, str(watch.temporary)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=240, check=True).stdout
    message, rank, signal_name, log = json.loads(output.splitlines()[-1])
    assert "rank 1 of 2 on" in message
    assert "was killed by the kernel: out of memory; its memory peaked at" in message
    assert (rank, signal_name, log) == (1, "SIGKILL", ["about to take memory"])


def test_the_kernels_counter_is_read_from_files_of_names_and_values(tmp_path):
    assert keeper._counter(str(tmp_path / "missing")) is None
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    assert keeper._counter(str(tmp_path / "memory.events")) == 2
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert keeper._counter(str(tmp_path / "memory.oom_control")) == 5
    assert os.path.exists("/proc/vmstat") is (keeper._counter("/proc/vmstat") is not None)  # noqa: PTH110
