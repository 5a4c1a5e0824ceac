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


def test_a_process_that_lives_keeps_its_run():
    mine = Heartbeat.now()
    assert mine.lost(mine.time + LOST_AFTER_S - 1) is None


def test_a_heartbeat_of_ten_minutes_is_too_old_wherever_its_process_is():
    mine = Heartbeat.now()
    assert "no sign of life for 10 minutes" in mine.lost(mine.time + LOST_AFTER_S)
    elsewhere = replace(mine, process=replace(mine.process, machine="another", pid=2**30))
    assert elsewhere.lost(mine.time) is None
    assert "no sign of life" in elsewhere.lost(mine.time + LOST_AFTER_S)


def test_a_process_of_this_machine_that_is_gone_has_lost_its_run_at_once():
    mine = Heartbeat.now()
    gone = replace(mine, process=replace(mine.process, started=mine.process.started - 60))
    assert f"{gone.process}, which kept this run, is gone" in gone.lost(time.time())
