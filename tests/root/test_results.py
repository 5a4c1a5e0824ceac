"""How results look in a terminal and in a notebook."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from lakelens.results import ReadableResult

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
