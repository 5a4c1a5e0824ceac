"""What the demo shows."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from lakelens.jobs.demo.report import MOST_CLASSES_DRAWN, ClassLine, Sample, choose_samples, class_table, draw_result

pytestmark = pytest.mark.unit


def line(name: str, before: float | None = 0.5, after: float | None = 0.9) -> ClassLine:
    return ClassLine(name, 3, 120, before, after, 36)


def test_the_table_marks_the_class_and_says_what_has_no_value() -> None:
    text = class_table([line("one"), line("eight", None, 1.0)], "eight").splitlines()
    assert text[1].startswith("  one")
    assert text[2].startswith("> eight")
    assert text[2].split() == [">", "eight", "3", "120", "36", "-", "1.00"]


def test_samples_of_the_class_whose_answer_changed_come_first() -> None:
    samples = [
        Sample("a", "one", "one", "one"),
        Sample("b", "one", "two", "one"),
        Sample("c", "eight", "eight", "eight"),
        Sample("d", "eight", "one", "eight"),
    ]
    assert [s.path for s in choose_samples(samples, "eight")] == ["d", "c", "b", "a"]
    assert [s.path for s in choose_samples(samples, "eight", count=1)] == ["d"]


@pytest.mark.parametrize("classes", [2, MOST_CLASSES_DRAWN + 30])
def test_the_picture_is_drawn_with_few_and_with_many_classes(classes: int, tmp_path: Path) -> None:
    buffer = BytesIO()
    Image.new("L", (20, 20), 128).save(buffer, "JPEG")
    lines = [line(f"class {index}", index / classes) for index in range(classes)]
    sample = Sample("p", "class 0", "class 1", "class 0", buffer.getvalue())
    draw_result(tmp_path / "r.png", lines, [sample] * 5, "class 1")
    with Image.open(tmp_path / "r.png") as picture:
        assert picture.size[0] > 1000
        assert picture.size[1] < 1600
