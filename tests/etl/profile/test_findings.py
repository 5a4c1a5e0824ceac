"""The findings name what a reader should look at first."""

from __future__ import annotations

import pytest
from profile_tables import box, gathered, image_row, jpeg, picture, warnings_of, write_quarantine, write_table

from lakelens.etl.commit.transaction import write_note
from lakelens.etl.profile.findings import find_findings
from lakelens.etl.profile.page import render_page

pytestmark = pytest.mark.unit


def test_the_findings_name_what_to_look_at_warnings_first(two):
    write_quarantine(two, {"truncated": 5})
    found = gathered(two)
    assert warnings_of(found) == [
        "1 class without any images in validation: dog.",
        "1 class without any images in test: dog.",
        "1 image in several classes, with the same bytes.",
        "3 images of test (13.0%) nearly equal to one of train.",
        "1 image that cannot be decoded.",
        "5 files (6.7% of all) are in quarantine, reason truncated.",
    ]
    levels = [level for level, _ in find_findings(found)]
    assert levels == sorted(levels, key=("warning", "note", "good").index)
    assert ("note", "Near-duplicates were not looked for.") in find_findings(gathered(two, near_duplicates=False))


def test_sizes_of_classes_and_counts_of_one_are_worded_as_they_are(tmp_path):
    rows = [image_row("a", jpeg(picture(i)), i, split="train") for i in range(100)]
    rows += [image_row(name, jpeg(picture(i)), i, split="train") for i, name in ((101, "b"), (102, None))]
    location = write_table(tmp_path / "t", rows, labels={"a": 0, "b": 1, "lost": 2})
    write_quarantine(location, {"not_an_image": 1})
    assert find_findings(gathered(location, near_duplicates=False)) == [
        ("warning", "The largest class (a, 100) has 100.0 times the images of the smallest (b, 1)."),
        ("warning", "1 class with fewer than 10 images: b."),
        ("warning", "1 class with a number and no image any more: lost."),
        ("note", "1 image without a class."),
        ("note", "Near-duplicates were not looked for."),
        ("note", "1 file (1.0% of all) is in quarantine, reason not_an_image."),
    ]
    write_quarantine(location, {"empty": 2})
    found = gathered(location, near_duplicates=False)
    assert warnings_of(found)[-1] == "3 files (2.9% of all) are in quarantine, most of them for empty."
    assert dict(found.reasons) == {"empty": 2, "not_an_image": 1}


def test_a_share_of_train_that_is_off_is_noted(tmp_path):
    rows = [image_row("a", jpeg(picture(i)), i, split="train" if i < 90 else "test") for i in range(100)]
    rows += [image_row("b", jpeg(picture(i)), i, split="train" if i < 50 else "test") for i in range(100)]
    found = find_findings(gathered(write_table(tmp_path / "t", rows), near_duplicates=False))
    assert ("note", "2 classes whose share in train is more than 10 points off its 70%: a, b.") in found


def test_good_news_is_named_too(tmp_path):
    splits = ("train", "validation", "test")
    rows = [image_row(("a", "b")[i % 2], jpeg(picture(i)), i, split=splits[i % 3]) for i in range(60)]
    assert find_findings(gathered(write_table(tmp_path / "t", rows))) == [
        ("good", "All 2 classes have 30 images each."),
        ("good", "No image nearly equal to one of another split."),
        ("good", "Nothing is in quarantine."),
    ]


def test_what_ingests_repaired_is_added_up_and_what_an_option_changes_is_a_warning(tmp_path):
    location = tmp_path / "t"
    notes = [
        {"dark_samples": 2, "exif_turned": 1},
        {},
        {"dark_samples": 1, "orientation_assumed": 4},
        {"dark_samples": 9},
    ]
    for number, repairs in enumerate(notes):
        rows = [image_row("cat", jpeg(picture(number)), number, split="train")]
        write_table(location, rows, note=write_note("ingest", batch_id=str(number), repairs=repairs))
    write_table(location, [image_row("cat", jpeg(picture(9)), 9, split="train")], note="of another writer")
    found = gathered(location, 2, near_duplicates=False)
    assert dict(found.repairs) == {"orientation_assumed": 4, "dark_samples": 3, "exif_turned": 1}
    told = warnings_of(found)
    assert any(text.startswith("3 images of more than 8 bits stored dark") and "--depth" in text for text in told)
    assert any(text.startswith("4 images turned by EXIF") and "--boxes-drawn-on" in text for text in told)
    assert gathered(location, near_duplicates=False).repairs["dark_samples"] == 12
    page = render_page(found, {})
    assert '<td class="l">orientation_assumed</td>' in page


@pytest.mark.parametrize(("marks", "warned"), [((True, True), True), ((True, False), False)])
def test_a_table_whose_boxes_all_are_difficult_is_a_warning(tmp_path, marks, warned):
    boxes = [[box("cat", 1, 1, 30, 30, mark)] for mark in marks]
    rows = [image_row(None, jpeg(picture(i)), i, split="train", boxes=each) for i, each in enumerate(boxes)]
    told = warnings_of(gathered(write_table(tmp_path / "t", rows), near_duplicates=False))
    assert ("All boxes are difficult or of crowds: a detector trains on no object." in told) == warned
