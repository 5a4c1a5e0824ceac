"""Contents that are in several classes are found with their files."""

from __future__ import annotations

import pytest
from profile_tables import gathered, image_row, jpeg, picture, write_table

pytestmark = pytest.mark.unit


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
