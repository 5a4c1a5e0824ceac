"""Who keeps a run, judged by its heartbeat."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from lakelens.tracking.heartbeat import LOST_AFTER_S, Heartbeat, _start_of

pytestmark = pytest.mark.unit


def test_a_heartbeat_is_read_as_it_was_written():
    mine = Heartbeat.now()
    assert Heartbeat.parse(str(mine)) == mine


@pytest.mark.parametrize("text", [None, "", "yes", "[]", '{"host": "a"}'])
def test_what_is_no_heartbeat_says_nothing(text):
    assert Heartbeat.parse(text) is None


def test_a_process_that_lives_keeps_its_run():
    mine = Heartbeat.now()
    assert mine.lost(mine.time + LOST_AFTER_S - 1) is None


def test_a_heartbeat_of_ten_minutes_is_too_old_wherever_its_process_is():
    mine = Heartbeat.now()
    assert "no sign of life for 10 minutes" in mine.lost(mine.time + LOST_AFTER_S)
    assert "no sign of life" in replace(mine, machine="another").lost(mine.time + LOST_AFTER_S)


def test_a_process_of_this_machine_that_is_gone_has_lost_its_run_at_once():
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = replace(Heartbeat.now(), pid=other.pid, started=_start_of(other.pid))
    assert theirs.lost(time.time()) is None
    other.kill()
    while theirs.lost(time.time()) is None:  # ended, and not yet waited for
        time.sleep(0.01)
    other.communicate()
    assert f"process {other.pid} on {theirs.host}, which kept this run, is gone" in theirs.lost(time.time())


def test_a_process_that_has_the_id_of_one_that_is_gone_keeps_no_run():
    mine = Heartbeat.now()
    assert "is gone" in replace(mine, started=mine.started + 1).lost(time.time())


def test_nothing_is_concluded_from_the_processes_of_another_machine():
    assert replace(Heartbeat.now(), machine="another", pid=2**30).lost(time.time()) is None
