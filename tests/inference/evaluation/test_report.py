"""Rules of an evaluation's report: the interval of a recall."""

from __future__ import annotations

import pytest

from lakelens.inference.evaluation.report import recall_interval

pytestmark = pytest.mark.unit


# As prop.test(..., correct = FALSE) of R gives them.
@pytest.mark.parametrize(
    ("found", "rows", "low", "high"),
    [(8, 10, 0.4901625, 0.9433178), (0, 10, 0.0, 0.2775328), (1, 1, 0.2065493, 1.0), (180, 200, 0.8506, 0.9343)],
)
def test_the_interval_is_wilsons(found, rows, low, high):
    assert recall_interval(found / rows, rows) == pytest.approx((low, high), abs=2e-4)


def test_a_class_without_rows_has_no_interval():
    assert recall_interval(None, 0) is None
