from __future__ import annotations

import pytest

from lakelens.errors import InvalidArgumentError, NotAnImageTableError
from lakelens.etl.model.classes import LABELS_PROPERTY, class_name, class_order, labels_of

pytestmark = pytest.mark.unit


def test_whole_numbers_are_sorted_by_value_and_before_names():
    assert sorted(["10", "b", "2", "a10", "011"], key=class_order) == ["2", "10", "011", "a10", "b"]


@pytest.mark.parametrize("name", ["a\x1cb", "a\x85b", "a\x0bb", "cat\x00", "\x1fcat"])
def test_control_characters_are_no_blanks_of_a_class_name(name):
    with pytest.raises(InvalidArgumentError, match="has a character that cannot be seen"):
        class_name(name)
    assert class_name("a\tb\r\n") == "a b"


def test_a_table_without_the_property_has_no_labels():
    assert labels_of({}) == {}


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": "x"}', '{"a": null}', '{"a": 1, "b": 1}', "3"])
def test_a_broken_property_is_named(text):
    with pytest.raises(NotAnImageTableError, match=r"lakelens\.labels"):
        labels_of({LABELS_PROPERTY: text})
