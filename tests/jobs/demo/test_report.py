"""What the demo shows."""

from __future__ import annotations

import pytest

from lakelens.inference.evaluation.comparison import ClassChange
from lakelens.jobs.demo.report import class_table

pytestmark = pytest.mark.unit


def test_the_table_marks_the_class_and_says_what_has_no_value() -> None:
    lines = [
        ClassChange("one", 0, 36, 0.5, 0.9, 14, 0, 120, 120),
        ClassChange("eight", 1, 36, None, 1.0, 30, 0, 3, 120),
    ]
    text = class_table(lines, "eight").splitlines()
    assert text[1].startswith("  one")
    assert text[2].startswith("> eight")
    assert text[2].split() == [">", "eight", "3", "120", "36", "-", "1.00"]
