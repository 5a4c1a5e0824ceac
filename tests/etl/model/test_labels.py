from __future__ import annotations

import pytest

from lakelens.errors import NotAnImageTableError
from lakelens.etl.model.classes import LABELS_PROPERTY, class_order, labels_of

pytestmark = pytest.mark.unit


def test_whole_numbers_are_sorted_by_value_and_before_names():
    assert sorted(["10", "b", "2", "a10", "011"], key=class_order) == ["2", "10", "011", "a10", "b"]


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": "x"}', '{"a": null}', '{"a": 1, "b": 1}', "3"])
def test_a_broken_property_is_named(text):
    with pytest.raises(NotAnImageTableError, match=r"lakelens\.labels"):
        labels_of({LABELS_PROPERTY: text})
