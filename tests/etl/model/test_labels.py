from __future__ import annotations

import pytest

from lakelens.errors import NotAnImageTableError
from lakelens.etl.model.labels import LABELS_PROPERTY, class_order, grow_labels, labels_of, labels_property

pytestmark = pytest.mark.unit


def test_whole_numbers_are_sorted_by_value_and_before_names():
    assert sorted(["10", "b", "2", "a10", "011"], key=class_order) == ["2", "10", "011", "a10", "b"]


def test_numbers_only_grow():
    first = grow_labels({}, ["cat", "ant", "bee", "cat"])
    assert first == {"cat": 0, "ant": 1, "bee": 2}
    assert grow_labels(first, ["zebra", "cat", "aardvark"]) == {**first, "zebra": 3, "aardvark": 4}
    assert grow_labels(first, []) == first


def test_a_number_is_never_reused_after_a_gap():
    assert grow_labels({"cat": 7}, ["ant"]) == {"cat": 7, "ant": 8}


def test_labels_survive_the_property():
    labels = {"Über cat": 0, "犬": 1, 'it\'s \\ "quoted"': 2}
    assert labels_of({LABELS_PROPERTY: labels_property(labels)}) == labels


def test_a_table_without_the_property_has_no_labels():
    assert labels_of({}) == {}


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": "x"}', '{"a": null}', '{"a": 1, "b": 1}', "3"])
def test_a_broken_property_is_named(text):
    with pytest.raises(NotAnImageTableError, match=r"lakelens\.labels"):
        labels_of({LABELS_PROPERTY: text})
