"""How results look in a terminal and in a notebook."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd
import pytest

from lakelens.inference.evaluation.metrics import measure
from lakelens.inference.evaluation.result import EvaluationResult
from lakelens.inference.promotion import Promotion, Staleness
from lakelens.results import ReadableResult
from lakelens.search.running.result import SearchResult

pytestmark = pytest.mark.unit


@dataclass(frozen=True, repr=False)
class Inner(ReadableResult):
    note: str = ""


@dataclass(frozen=True, repr=False)
class Result(ReadableResult):
    version: int
    rows: dict[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)
    committed: bool = False


def test_only_fields_that_say_something_are_shown_one_per_line() -> None:
    assert repr(Result(3)) == "Result(\n  version=3,\n)"
    shown = repr(Result(3, {"cat": 1}, ("a",), Inner("x"), committed=True)).splitlines()
    assert shown[1:4] == ["  version=3,", "  rows={'cat': 1},", "  names=['a'],"]
    assert shown[-2:] == ["  committed=True,", ")"]
    assert "    note='x'," in shown


def test_long_values_are_cut_with_their_number() -> None:
    result = Result(1, {str(number): number for number in range(12)}, tuple("abcdefghijkl"))
    assert repr(result).count("... and 2 more") == 2
    assert result._repr_html_().count("... and 2 more") == 2


def test_a_notebook_shows_a_table_whose_texts_are_escaped() -> None:
    page = Result(1, {"<b>": 2}, inner=Inner("a & b"))._repr_html_()
    assert page.startswith("<table><caption>Result</caption>")
    assert "&lt;b&gt;: 2" in page
    assert "a &amp; b" in page
    assert "committed" not in page


def test_a_list_that_one_line_does_not_hold_has_a_line_for_each_item() -> None:
    names = ("a" * 60, "b" * 60)
    assert repr(Result(1, names=names)).splitlines()[2:5] == ["  names=[", f"    {names[0]!r},", f"    {names[1]!r},"]


def test_results_of_evaluations_promotions_and_searches_are_readable() -> None:
    names = {number: f"class {number}" for number in range(30)}
    columns = ["label", "prediction", "true_rank", "bin", "rows", "confidence"]
    evaluation = measure(pd.DataFrame([(n, n, 0, 3, 5, 4.0) for n in names], columns=columns), names)
    states = {"completed": 2}
    results = [
        EvaluationResult("runs:/1", "d" * 64, "1", "/t@0", "/t", 3, "test", evaluation),
        Promotion("photos", "champion", 2, promoted=True, reason="no version had the alias"),
        Staleness(True, "no version of model 'photos' was trained on this table", "/t", 3),
        SearchResult("1", "2", "file:/m", "/t", 3, 0, "4", "loss", 0.5, {"lr": 0.1}, "/c", "d" * 64, states, 9.0),
    ]
    for result in results:
        assert repr(result).startswith(f"{type(result).__name__}(\n  ")
        assert max(map(len, repr(result).splitlines())) < 120
        assert f"<caption>{type(result).__name__}</caption>" in result._repr_html_()
        for hidden in ("confusion", "calibration", "_trials", "None"):
            assert hidden not in repr(result)
