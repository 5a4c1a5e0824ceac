"""Rules of classes over time: numbers only grow; what vanished or was renamed is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelens.etl.label_changes import compare_labels, find_class_conflicts

pytestmark = pytest.mark.unit

counts = st.dictionaries(st.text("abcAB _", min_size=1, max_size=4), st.integers(0, 3), max_size=6)


@given(st.lists(counts, max_size=5))
def test_numbers_only_grow_and_none_is_given_twice(states):
    labels = {}
    for state in states:
        changes = compare_labels(labels, state)
        assert all(changes.labels[name] == number for name, number in labels.items())
        assert sorted(changes.labels.values()) == list(range(len(changes.labels)))
        assert {name for name, rows in state.items() if rows} <= set(changes.labels)
        labels = changes.labels


def test_a_class_without_images_any_more_is_reported_once():
    labels = {"cat": 0, "dog": 1, "old": 2}
    changes = compare_labels(labels, {"cat": 3, "dog": 0}, previous_counts={"cat": 3, "dog": 2})
    assert changes.vanished == ("dog",)
    assert changes.labels == labels


@pytest.mark.parametrize(("old", "new"), [("ak47", "AK-47"), ("big cat", "big_cat"), ("Straße", "STRASSE")])
def test_a_class_that_is_spelled_otherwise_is_reported_as_renamed(old, new):
    (rename,) = compare_labels({old: 0}, {new: 5}).renamed
    assert (rename.old, rename.new, rename.evidence) == (old, new, "spelling")


def test_a_class_whose_images_came_back_under_another_name_is_renamed():
    changes = compare_labels(
        {"dog": 0}, {"hound": 9, "cat": 1}, previous_counts={"dog": 10}, moved={("dog", "hound"): 9, ("dog", "cat"): 1}
    )
    assert changes.renamed == (("dog", "hound", "content", 9),)
    assert changes.labels["dog"] == 0
    assert changes.labels["hound"] not in (0,)


def test_a_few_images_that_moved_are_no_rename():
    changes = compare_labels({"dog": 0}, {"cat": 5}, previous_counts={"dog": 10}, moved={("dog", "cat"): 3})
    assert changes.vanished == ("dog",)
    assert changes.renamed == ()


def test_names_without_letters_are_not_alike():
    assert compare_labels({"+": 0}, {"-": 5}).renamed == ()


def test_one_content_in_two_classes_is_found_with_its_files():
    rows = [("1", "cat", "a"), ("2", "cat", "b"), ("2", "cat", "c"), ("3", "dog", "e"), ("3", "cat", "d")]
    assert find_class_conflicts(rows) == [("3", ("cat", "dog"), ("d", "e"))]
