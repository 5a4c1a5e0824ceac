"""The seconds of a stretch of training."""

from __future__ import annotations

import pytest

from lakelens.training.segments.report import FeedTimes, Pace


@pytest.mark.unit
def test_a_stretch_is_waiting_and_computing_without_what_was_left_out():
    now = 100.0
    pace = Pace(lambda: now)
    now = 110.0
    pace.begin()
    pace.waited(1.0)
    pace.left_out(4.0)  # a checkpoint
    now = 117.0
    assert pace.ended() == FeedTimes(wait=1.0, compute=2.0)
