"""What evaluations show on a terminal."""

from __future__ import annotations

import pandas as pd
import pytest

from lakelens.inference.evaluation.comparison import compare
from lakelens.inference.evaluation.metrics import measure
from lakelens.inference.evaluation.result import EvaluationResult
from lakelens.jobs.run_lines import evaluation_lines

pytestmark = pytest.mark.unit

NAMES = {0: "cat", 1: "dog"}


def test_an_evaluation_shows_both_models_each_class_and_what_changed() -> None:
    columns = ["label", "prediction", "true_rank", "bin", "rows", "confidence"]
    after = measure(pd.DataFrame([(0, 0, 0, 14, 9, 8.9), (0, 1, 1, 8, 1, 0.6)], columns=columns), NAMES)
    before = measure(pd.DataFrame([(0, 0, 0, 9, 5, 3.1), (0, 1, 1, 8, 5, 3.0)], columns=columns), NAMES)
    pairs = pd.DataFrame([(0, 1, 0, 4), (0, 0, 0, 5), (0, 1, 1, 1)], columns=["label", "before", "after", "rows"])
    changes = compare(pairs, NAMES)
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
    assert [line.split() for line in lines if line.startswith("dog")] == [["dog", "0", "-", "0", "-"]]
    assert "4 answers fixed, 0 broken; p = 0.12 (McNemar)" in lines
    assert lines[-2:] == ["the class that gained most: cat", "page: /out/page.html"]
