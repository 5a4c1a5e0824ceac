"""Who keeps a run, judged by its heartbeat."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from lakelens.tracking.heartbeat import LOST_AFTER_S, Heartbeat

pytestmark = pytest.mark.unit


def test_a_heartbeat_is_read_as_it_was_written():
    mine = Heartbeat.now()
    assert Heartbeat.parse(str(mine)) == mine


@pytest.mark.parametrize("text", [None, "", "yes", "[]", '{"process": {"host": "a"}}'])
def test_what_is_no_heartbeat_says_nothing(text):
    assert Heartbeat.parse(text) is None


def test_a_process_keeps_its_run_for_ten_minutes_without_a_heartbeat_wherever_it_is():
    mine = Heartbeat.now()
    elsewhere = replace(mine, process=replace(mine.process, machine="another", pid=2**30))
    for beat in (mine, elsewhere):
        assert beat.lost(mine.time + LOST_AFTER_S - 1) is None
        assert "no sign of life for 10 minutes" in beat.lost(mine.time + LOST_AFTER_S)


def test_a_process_of_this_machine_that_is_gone_has_lost_its_run_at_once():
    mine = Heartbeat.now()
    gone = replace(mine, process=replace(mine.process, started=mine.process.started - 60))
    assert f"{gone.process}, which kept this run, is gone" in gone.lost(time.time())
