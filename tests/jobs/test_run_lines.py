"""What `lakelens evaluate` shows on a terminal."""

from __future__ import annotations

import pytest

from lakelens.inference.evaluation.comparison import PairGroup, compare_groups
from lakelens.inference.evaluation.metrics import AnswerGroup, evaluate_groups
from lakelens.inference.evaluation.result import EvaluationResult
from lakelens.jobs.run_lines import evaluation_lines

pytestmark = pytest.mark.unit

NAMES = {0: "cat", 1: "dog"}


def test_an_evaluation_shows_both_models_each_class_and_what_changed() -> None:
    after = evaluate_groups([AnswerGroup(0, 0, 0, 14, 9, 8.9), AnswerGroup(0, 1, 1, 8, 1, 0.6)], NAMES)
    before = evaluate_groups([AnswerGroup(0, 0, 0, 9, 5, 3.1), AnswerGroup(0, 1, 1, 8, 5, 3.0)], NAMES)
    changes = compare_groups([PairGroup(0, 1, 0, 4), PairGroup(0, 0, 0, 5), PairGroup(0, 1, 1, 1)], NAMES)
    result = EvaluationResult(
        "runs:/2",
        "d" * 64,
        "2",
        "/t@1",
        "/t",
        1,
        "test",
        after,
        other=before,
        comparison=changes,
        page="/out/page.html",
    )
    lines = evaluation_lines(result)
    assert lines[0].split() == ["MODEL", "BEFORE"]
    assert lines[1].split() == ["accuracy", "0.9000", "0.5000"]
    assert [line.split() for line in lines if line.startswith("dog")] == [["dog", "0", "0", "-", "0"]]
    assert "4 answers mended, 0 broken; p = 0.12 (McNemar)" in lines
    assert lines[-2:] == ["the class that gained most: cat", "page: /out/page.html"]
