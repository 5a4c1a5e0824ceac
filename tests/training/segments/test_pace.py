"""The seconds of a stretch of training."""

from __future__ import annotations

import time

import pytest

from lakelens.training.segments.pace import Pace

pytestmark = pytest.mark.unit


def test_the_seconds_of_a_checkpoint_inside_a_stretch_are_not_computing():
    pace = Pace()
    began = time.perf_counter()
    time.sleep(0.2)  # the checkpoint
    pace.left_out(time.perf_counter() - began)
    assert pace.ended().compute < 0.1
