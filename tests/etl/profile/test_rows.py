"""The numbers of a profile are those of the version, whoever wrote the table."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from profile_tables import box, gathered, image_row, jpeg, picture, write_table
from snapshots import open_snapshot

from lakelens.etl.model import schema
from lakelens.etl.model.classes import NO_CLASS
from lakelens.etl.profile.rows import for_each_row, read_rows
from lakelens.etl.versions.changes import class_counts

pytestmark = pytest.mark.unit


def test_the_numbers_are_those_of_the_version(two):
    found = gathered(two)
    assert found.class_images.to_dict("index") == {
        "cat": {"train": 6, "validation": 20, "test": 23},
        "dog": {"train": 21, "validation": 0, "test": 0},
    }
    assert (found.rows, dict(found.rows_by_split)) == (70, {"train": 27, "validation": 20, "test": 23})
    assert dict(found.images["format"].value_counts()) == {"jpeg": 70}
    assert dict(found.images["mode"].value_counts()) == {"RGB": 69}
    assert set(found.images["width"]) == set(found.images["height"]) == {96}
    assert len(found.images["stored_bytes"].dropna()) == 70


def test_boxes_are_counted_by_class_split_and_size(tmp_path):
    cats = [box("cat", 0, 0, 20, 20, True)] * 2
    rows = [
        image_row(None, jpeg(picture(1)), 1, size=(200, 100), split="train", boxes=cats),
        image_row(None, jpeg(picture(2)), 2, size=(200, 100), split="test", boxes=[box("dog", 0, 0, 200, 100)]),
        image_row(None, jpeg(picture(3)), 3, size=(200, 100), split="test", boxes=[]),
        image_row(None, jpeg(picture(4)), 4, size=(200, 100), split="test", boxes=None),
    ]
    found = gathered(write_table(tmp_path / "boxes", rows, labels={"cat": 0, "dog": 1, "fox": 2}))
    assert found.unit == "boxes"
    assert found.counts.to_dict("index") == {
        "cat": {"train": 2, "test": 0},
        "dog": {"train": 0, "test": 1},
        "fox": {"train": 0, "test": 0},
    }
    sizes = found.boxes[["width", "height", "relative_width", "relative_height", "difficult"]].drop_duplicates()
    shown = sorted(sizes.itertuples(index=False, name=None))
    assert shown == [pytest.approx((20, 20, 0.1, 0.2, True)), (200, 100, 1, 1, False)]
    assert sorted(found.images["boxes"].fillna(-1)) == [-1, 0, 1, 2]
    assert {name: len(samples) for name, samples in found.samples.items()} == {"cat": 1, "dog": 1}


def test_a_box_without_a_corner_does_not_count(tmp_path):
    whole = box("cat", 0, 0, 20, 20)
    lists = [[whole, None], [{**whole, "xmin": None}], [{**whole, "ymax": float("nan")}], [{**whole, "xmax": np.inf}]]
    rows = [image_row(None, jpeg(picture(i)), i, split="train", boxes=boxes) for i, boxes in enumerate(lists)]
    found = gathered(write_table(tmp_path / "t", rows, labels={"cat": 0}))
    assert (len(found.boxes), sorted(found.images["boxes"])) == (1, [0, 0, 0, 1])
    assert found.class_boxes.loc["cat"].to_dict() == {"train": 1}
    assert len(found.samples["cat"]) == 1
    rows[0][schema.ANNOTATIONS] = [None, whole]
    assert len(gathered(write_table(tmp_path / "labelled", [{**rows[0], schema.LABEL_NAME: "dog"}])).samples) == 1


def test_annotations_of_another_kind_are_not_boxes_and_splits_that_are_numbers_are_named_by_them(tmp_path):
    images = [jpeg(picture(i)) for i in range(4)]
    rows = pa.table({"image": images, "annotations": ["{}", None, None, None], "split": [0, 1, 1, None]})
    write_deltalake(str(tmp_path / "t"), rows)
    found = gathered(tmp_path / "t", near_duplicates=False)
    assert (found.rows, len(found.boxes), len(found.samples[NO_CLASS])) == (4, 0, 4)
    assert dict(found.rows_by_split) == {"0": 1, "1": 2, "none": 1}


def test_the_profile_counts_the_same_classes_as_the_version(tmp_path):
    images = [jpeg(picture(i)) for i in range(4)]

    def same(location):
        classes = gathered(location, near_duplicates=False).class_images.sum(axis=1).to_dict()
        assert classes == class_counts(open_snapshot(location))
        return classes

    rows = pa.table({"image": images, "label_name": ["a/b", "a/b", "b", "b"]})
    write_deltalake(str(tmp_path / "folders"), rows, partition_by=["label_name"])
    assert same(tmp_path / "folders") == {"a/b": 2, "b": 2}
    write_deltalake(str(tmp_path / "empty"), pa.table({"image": images, "label_name": ["a", "", None, "b"]}))
    assert same(tmp_path / "empty") == {"a": 1, "b": 1, NO_CLASS: 2}
    numbers = pa.array([0, 1, 1, None], pa.int32())
    write_deltalake(str(tmp_path / "numbers"), pa.table({"image": images, "label": numbers}))
    assert same(tmp_path / "numbers") == {"0": 1, "1": 2, NO_CLASS: 1}
    write_deltalake(str(tmp_path / "grown"), pa.table({"image": images, "label": [0, 0, 1, 1]}))
    rows = pa.table({"image": images, "label": [0, 0, 1, 1], "label_name": ["a", "a", "b", "b"]})
    write_deltalake(str(tmp_path / "grown"), rows, mode="append", schema_mode="merge")
    assert same(tmp_path / "grown") == {"a": 2, "b": 2, NO_CLASS: 4}


def test_a_process_warns_after_a_profile_as_before(two):
    snapshot, before = open_snapshot(two), list(warnings.filters)
    images, _ = read_rows(snapshot)
    # The work leaves warnings silent, as two threads do whose `catch_warnings` overlap.
    found = list(for_each_row(snapshot, images, [3, 69], [schema.PATH], lambda _: warnings.simplefilter("ignore")))
    assert (found, list(warnings.filters)) == ([(3, None), (69, None)], before)


def test_one_content_in_two_classes_is_found_with_its_files_and_many_copies_hide_none(two, tmp_path):
    found = gathered(two, near_duplicates=False)
    paths = ["file:///images/cat/00300.jpg", "file:///images/dog/00300.jpg"]
    assert (found.conflict_count, found.conflicts) == (1, ((["cat", "dog"], paths),))
    same = jpeg(picture(1))
    rows = [image_row("cat", same, i) for i in range(6)] + [image_row("dog", same, 9)]
    ((classes, paths),) = gathered(write_table(tmp_path / "t", rows), near_duplicates=False).conflicts
    assert (classes, len(paths)) == (["cat", "dog"], 4)
    assert "file:///images/dog/00009.jpg" in paths
