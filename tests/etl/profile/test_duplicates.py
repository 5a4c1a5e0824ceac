"""Images that look alike and conflicting classes are counted and shown."""

from __future__ import annotations

import pytest
from profile_tables import gathered, image_row, jpeg, picture, warnings_of, write_table

from lakelens.etl.profile.figures import draw_plots
from lakelens.etl.profile.findings import find_findings

pytestmark = pytest.mark.unit


def test_images_that_look_alike_are_counted_across_and_within_splits_and_shown(two):
    similar = gathered(two).similar
    assert (similar.compared, similar.plain, similar.unreadable) == (68, 1, 1)
    assert similar.near.to_numpy().tolist() == [[2, 0, 3], [0, 0, 0], [3, 0, 0]]
    assert len(similar.pairs) == 3
    for one, other, distance in similar.pairs:
        assert (one.split, other.split) == ("train", "test")
        assert int(one.path[-9:-4]) + 100 == int(other.path[-9:-4])
        assert distance <= similar.max_distance


def test_alike_in_validation_and_test_is_a_warning_too(tmp_path):
    rows = [image_row("a", jpeg(picture(i)), i, split="train") for i in range(3)]
    rows += [image_row("a", jpeg(picture(9), q), q, split=split) for q, split in ((90, "validation"), (60, "test"))]
    found = warnings_of(gathered(write_table(tmp_path / "t", rows)))
    assert "1 image of test (100.0%) nearly equal to one of validation." in found


def test_one_split_has_its_own_near_duplicates_and_no_good_news_of_another(tmp_path):
    rows = [image_row("a", jpeg(picture(i // 2), 90 - i % 2 * 20), i, split="train") for i in range(8)]
    found = gathered(write_table(tmp_path / "t", rows))
    assert found.similar.near.to_dict() == {"train": {"train": 8}}
    assert "near_duplicates" in draw_plots(found)
    assert not any("another split" in finding.text for finding in find_findings(found))


def test_one_content_in_two_classes_is_found_with_its_files(two):
    found = gathered(two, near_duplicates=False)
    paths = ["file:///images/cat/00300.jpg", "file:///images/dog/00300.jpg"]
    assert (found.conflict_count, found.conflicts) == (1, ((["cat", "dog"], paths),))


def test_many_copies_in_one_class_do_not_hide_the_file_in_another(tmp_path):
    same = jpeg(picture(1))
    rows = [image_row("cat", same, i) for i in range(6)] + [image_row("dog", same, 9)]
    ((classes, paths),) = gathered(write_table(tmp_path / "t", rows), near_duplicates=False).conflicts
    assert (classes, len(paths)) == (["cat", "dog"], 4)
    assert "file:///images/dog/00009.jpg" in paths
