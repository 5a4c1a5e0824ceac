"""Names of classes in figures: short enough for their place, and still different."""

from __future__ import annotations

import pytest

from lakelens.figures import readable, readable_names, texts_of

pytestmark = pytest.mark.unit


def test_long_names_that_begin_alike_differ_in_a_plot():
    names = [f"vehicles/on land/cars/of sports/model {number}" for number in range(3)]
    assert len({readable(name) for name in names}) == 3
    assert all(len(readable(name)) == 28 for name in names)
    assert readable("a" * 28) == "a" * 28


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["n01440764 tench, Tinca tinca", "n01443537 goldfish, Carassius"], ["n01440764…", "n01443537…"]),
        (["vehicles/on land/model 1", "vehicles/on land/model 2", "cat"], ["…nd/model 1", "…nd/model 2", "cat"]),
        (["a common start 1 a common end", "a common start 2 a common end"], ["…1 a commo…", "…2 a commo…"]),
        (["n01440764 tench", "vehicles/model 1", "vehicles/model 2"], ["n01440764…", "…es/model 1", "…es/model 2"]),
        (["short", "names"], ["short", "names"]),
    ],
)
def test_names_are_cut_at_the_end_that_does_not_differ(names, shown):
    assert readable_names(names, 11) == shown


def test_characters_that_a_figure_cannot_show_or_would_read_as_a_formula_are_replaced():
    assert texts_of(["锚杆", "$a$"]) == ["□□", r"\$a\$"]
