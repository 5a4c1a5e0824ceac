"""Rules of the profile: its numbers are those of the version, its page needs nothing and runs nothing."""

from __future__ import annotations

import io
import itertools
import re
import shutil
import sys
import warnings
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from PIL import Image
from profile_tables import box, image_row, jpeg, picture, write_quarantine, write_table

from lakelens import ImageTable
from lakelens.errors import (
    InvalidArgumentError,
    MissingDependencyError,
    NotADeltaTableError,
    NotAnImageTableError,
    VersionNotFoundError,
)
from lakelens.etl.images.codec import decode
from lakelens.etl.log.snapshot import open_snapshot
from lakelens.etl.model import schema
from lakelens.etl.profile import plots as profile_plots
from lakelens.etl.profile.data import ClassRows
from lakelens.etl.profile.findings import GOOD, WARNING, find_findings
from lakelens.etl.profile.names import readable, readable_names
from lakelens.etl.profile.page import render_page
from lakelens.etl.profile.plots import draw_plots
from lakelens.etl.profile.profile import gather_profile, profile, read_quarantine
from lakelens.etl.profile.scan import for_each_group, scan_rows
from lakelens.etl.versions.classes import NO_CLASS, class_counts

pytestmark = pytest.mark.unit

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "$\\frac{a}{b}$",
    "$",
    "{title}",
    "锚杆 & é",
    "a" * 300,
]


def gathered(location, **arguments):
    return gather_profile(open_snapshot(location), **arguments)


def texts(found):
    return [finding.text for finding in found]


class Page(HTMLParser):
    """Collects the tags and addresses of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.handlers, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action", "data", "poster")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def two(tmp_path):
    """Cats and dogs with leaks: 3 copies of train in test, one content in two classes, a plain and a broken image."""
    rows = [
        image_row(("cat", "dog")[i % 3 == 0], jpeg(picture(i)), i, split=("train", "validation", "test")[i % 3])
        for i in range(60)
    ]
    for i in range(3):
        rows.append(image_row("cat", jpeg(picture(1000 + i), 92), 100 + i, split="train"))
        rows.append(image_row("cat", jpeg(picture(1000 + i), 60), 200 + i, split="test"))
    same = jpeg(picture(2000))
    rows += [image_row(name, same, 300, split="train") for name in ("cat", "dog")]
    rows.append(image_row("cat", jpeg(Image.new("RGB", (96, 96), "red")), 400, split="train"))
    rows.append(image_row("cat", b"\xff\xd8 no more", 401, split="train"))
    return write_table(tmp_path / "two", rows)


def test_the_numbers_are_those_of_the_version(two):
    found = gathered(two)
    by_name = {entry.name: entry for entry in found.classes}
    assert found.rows == 70
    assert found.splits == ("train", "validation", "test")
    assert {name: entry.total for name, entry in by_name.items()} == {"cat": 49, "dog": 21}
    assert by_name["dog"].rows == {"train": 21, "validation": 0, "test": 0}
    assert found.rows_by_split == {"train": 27, "validation": 20, "test": 23}
    assert found.sizes.formats == {"jpeg": 70}
    assert found.sizes.modes == {"RGB": 69}
    assert found.sizes.common == (((96, 96), 70),)
    assert sum(found.sizes.stored_kilobytes.counts) == 70


def test_images_that_look_alike_across_splits_are_counted_and_shown(two):
    duplicates = gathered(two).duplicates
    assert (duplicates.compared, duplicates.plain, duplicates.unreadable) == (68, 1, 1)
    assert duplicates.across["test", "train"] == 3
    assert duplicates.across["train", "test"] == 3
    assert duplicates.across["train", "validation"] == 0
    assert duplicates.within == {"train": 2, "validation": 0, "test": 0}
    assert len(duplicates.pairs) == 3
    for one, other, distance in duplicates.pairs:
        assert (one.split, other.split) == ("train", "test")
        assert int(one.path[-9:-4]) + 100 == int(other.path[-9:-4])
        assert distance <= duplicates.max_distance


def test_alike_in_validation_and_test_is_a_warning_too(tmp_path):
    rows = [image_row("a", jpeg(picture(i)), i, split="train") for i in range(3)]
    rows += [image_row("a", jpeg(picture(9), q), q, split=split) for q, split in ((90, "validation"), (60, "test"))]
    found = find_findings(gathered(write_table(tmp_path / "t", rows)))
    assert (WARNING, "1 image of test (100.0%) nearly equal to one of validation.") in found


def test_one_split_has_its_own_near_duplicates_and_no_good_news_of_another(tmp_path):
    rows = [image_row("a", jpeg(picture(i // 2), 90 - i % 2 * 20), i, split="train") for i in range(8)]
    found = gathered(write_table(tmp_path / "t", rows))
    assert found.duplicates.within == {"train": 8}
    assert "near_duplicates" in draw_plots(found)
    assert not any("another split" in text for text in texts(find_findings(found)))


def test_one_content_in_two_classes_is_found_with_its_files(two):
    found = gathered(two)
    assert found.conflict_count == 1
    assert found.conflicts[0].classes == ("cat", "dog")
    assert found.conflicts[0].paths == ("file:///images/cat/00300.jpg", "file:///images/dog/00300.jpg")


def test_many_copies_in_one_class_do_not_hide_the_file_in_another(tmp_path):
    same = jpeg(picture(1))
    rows = [image_row("cat", same, i) for i in range(6)] + [image_row("dog", same, 9)]
    (conflict,) = gathered(write_table(tmp_path / "t", rows), near_duplicates=False).conflicts
    assert conflict.classes == ("cat", "dog")
    assert len(conflict.paths) == 4
    assert "file:///images/dog/00009.jpg" in conflict.paths


def test_the_findings_say_what_to_look_at(two):
    write_quarantine(two, {"truncated": 5})
    found = find_findings(gathered(two))
    warnings = " ".join(text for level, text in found if level == WARNING)
    assert "3 images of test (13.0%) nearly equal to one of train" in warnings
    assert "1 class without any images in validation: dog" in warnings
    assert "1 image that cannot be decoded" in warnings
    assert "1 image in several classes" in warnings
    assert "5 files (6.7% of all) are in quarantine, reason truncated." in warnings
    assert [level for level, _ in found] == sorted((level for level, _ in found), key=("warning", "note", "good").index)


def test_a_version_is_profiled_as_it_was(two):
    write_table(two, [image_row("fox", jpeg(picture(1)), 1)])
    assert gather_profile(open_snapshot(two, 0), near_duplicates=False).rows == 70
    later = gathered(two, near_duplicates=False)
    assert later.rows == 71
    assert later.duplicates is None
    assert "Near-duplicates were not looked for." in texts(find_findings(later))


def test_the_page_stands_alone_and_runs_nothing(tmp_path):
    rows = [image_row(name, jpeg(picture(i)), i) for i, name in enumerate(HOSTILE * 3)]
    for i, row in enumerate(rows):
        row[schema.PATH] = f'file:///x/{i}"><script>alert(1)</script>.jpg'
    location = write_table(tmp_path / "<b>table", rows)
    write_quarantine(location, {"<i>reason</i>": 2})
    result = profile(location, output=tmp_path / "out")
    text = result.page.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.handlers == []
    assert not {"script", "iframe", "object", "link", "b>table", "i>reason"} & set(page.tags)
    assert "default-src 'none'" in text
    assert all(re.match(r"#\w+$|data:image/(png|jpeg);base64,", address) for address in page.addresses)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "锚杆 &amp; é" in text
    assert {path.name for path in result.plots} >= {
        "class_distribution.png",
        "splits.png",
        "samples.png",
        "quarantine.png",
    }
    for path in result.plots:
        with Image.open(path) as image:
            image.load()
            assert image.format == "PNG"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["profile.html", *(path.name for path in result.plots)]
    )


def test_many_classes_are_all_listed_and_stay_a_page_that_opens(tmp_path):
    rows = [image_row(f"class {c:03}", jpeg(picture(c * 10 + i)), i) for c in range(257) for i in range(1 + c % 2)]
    result = profile(write_table(tmp_path / "many", rows), output=tmp_path / "out", near_duplicates=False)
    text = result.page.read_text(encoding="utf-8")
    assert all(f"class {c:03}" in text for c in range(257))
    assert len(result.profile.samples) == 257
    assert result.page.stat().st_size < 8_000_000
    assert "class_distribution" in {path.stem for path in result.plots}


def drawn(found, draw):
    figure = draw(found)
    figure.canvas.draw()
    return figure


def shown(labels):
    return [label for label in labels if label.get_visible() and label.get_text()]


def test_a_plot_of_one_class_that_dwarfs_the_others_has_ticks_that_can_be_read(two):
    counts = {"big": 1_000_000, **{f"class {number}": 40 for number in range(256)}}
    classes = tuple(ClassRows(name, None, {"train": count}) for name, count in counts.items())
    figure = drawn(replace(gathered(two, near_duplicates=False), classes=classes), profile_plots._draw_classes)
    for axis in figure.axes:
        ends = [label.get_window_extent() for label in shown(axis.get_xticklabels())]
        assert all(one.x1 < other.x0 for one, other in itertools.pairwise(ends))


def test_plots_of_ten_folds_tell_them_apart(two):
    folds = tuple(f"fold-{number}-of-all-ten" for number in range(10))
    classes = tuple(ClassRows(name, None, dict.fromkeys(folds, 90)) for name in ("cat", "dog"))
    found = replace(gathered(two), splits=folds, classes=classes)
    assert len(set(profile_plots.colours_of(folds).values())) == 10
    figure = drawn(found, profile_plots._draw_classes)
    (legend,) = figure.legends
    assert legend.get_window_extent().x0 >= 0
    for axis in drawn(found, profile_plots._draw_splits).axes[:1] + drawn(found, profile_plots._draw_duplicates).axes:
        assert all(label.get_rotation() == 30 for label in shown(axis.get_xticklabels()))


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
def test_names_are_elided_at_the_end_that_does_not_differ(names, shown):
    assert readable_names(names, 11) == shown


def test_a_file_alone_is_told_in_the_singular(tmp_path):
    location = write_table(tmp_path / "t", [image_row("a", jpeg(picture(1)), split="train")])
    write_quarantine(location, {"not_an_image": 1})
    found = gathered(location)
    assert "1 file (50.0% of all) is in quarantine, reason not_an_image." in texts(find_findings(found))
    page = render_page(found, {})
    for one in ("<b>1</b><span>image</span>", "<b>1</b><span>class</span>", "<b>1</b><span>split</span>"):
        assert one in page
    write_quarantine(location, {"empty": 2})
    assert "3 files (75.0% of all) are in quarantine, most of them for empty." in texts(
        find_findings(gathered(location))
    )


def test_the_sizes_of_the_source_files_that_are_there_are_shown(tmp_path):
    rows = []
    for number, size in enumerate([(40, 20), (20, 40), (30, 30), (10, 10), (50, 50)]):
        file = tmp_path / f"{number}.jpg"
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 0 else 1  # the first is shown turned
        picture(number, size).save(file, exif=exif)
        row = image_row("a", jpeg(picture(number)), number, split="train")
        row |= {schema.PATH: file.as_uri(), schema.SOURCE_LENGTH: file.stat().st_size}
        rows.append(row)
    location = write_table(tmp_path / "t", rows)
    with (tmp_path / "3.jpg").open("ab") as changed:
        changed.write(b"more")
    (tmp_path / "4.jpg").unlink()
    found = gathered(location, near_duplicates=False)
    source = found.sizes.source
    assert (source.files, source.looked_for) == (3, 5)
    assert (source.width_range, source.height_range) == ((20, 30), (30, 40))
    assert [count for count in source.aspects.counts if count] == [2, 1]
    assert "20 to 30 pixels wide and 30 to 40 high, of 3 that could be read among 5" in render_page(found, {})
    assert "source_sizes" in draw_plots(found)


def test_brightness_is_that_of_each_split(tmp_path):
    rows = [
        image_row("a", jpeg(Image.new("RGB", (96, 96), (grey,) * 3)), grey, split=split)
        for grey, split in ((0, "train"), (0, "train"), (255, "test"))
    ]
    brightness = gathered(write_table(tmp_path / "t", rows)).sizes.brightness
    assert {split: round(mean, 2) for split, mean in brightness.mean.items()} == {"train": 0, "test": 1}
    assert (brightness.shares["train"][0], brightness.shares["test"][-1]) == (1, 1)


def test_a_version_is_compared_with_another_one(tmp_path):
    location = write_table(tmp_path / "t", [image_row("cat", jpeg(picture(i)), i, split="train") for i in range(3)])
    write_table(location, [image_row("dog", jpeg(picture(9 + i)), i, split="train") for i in range(2)])
    DeltaTable(str(location)).delete("path = 'file:///images/cat/00001.jpg'")
    result = profile(location, output=tmp_path / "out", near_duplicates=False, compare=0)
    compared = result.profile.comparison
    assert (compared.version, compared.rows, compared.added, compared.removed, compared.content) == (0, 3, 2, 1, 0)
    assert compared.classes == {"cat": (3, 2), "dog": (0, 2)}
    assert "Since version 0: 2 images added, 1 removed, 0 with other content" in " ".join(texts(result.findings))
    assert "1 class new since version 0: dog." in texts(result.findings)
    assert {"comparison"} <= {path.stem for path in result.plots}
    assert 'id="comparison"' in result.page.read_text(encoding="utf-8")
    back = gather_profile(open_snapshot(location, 0), near_duplicates=False, compare=2)
    assert "1 class of version 2 without any image now: dog." in texts(find_findings(back))
    with pytest.raises(VersionNotFoundError):
        profile(location, output=tmp_path / "none", compare=7)
    assert not (tmp_path / "none").exists()


def test_a_profile_without_a_place_is_beside_nothing_of_the_users(two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, temporary = sorted(tmp_path.iterdir()), tmp_path / "temporary"
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    temporary.mkdir()
    result = profile(two, near_duplicates=False)
    assert result.page.parent.parent == temporary
    assert result.page.parent.name.startswith("two-v0-profile-")
    assert sorted(path for path in tmp_path.iterdir() if path != temporary) == before


def test_boxes_are_counted_by_class_split_and_size(tmp_path):
    rows = [
        image_row(
            None, jpeg(picture(1)), 1, size=(200, 100), split="train", boxes=[box("cat", 0, 0, 20, 20, True)] * 2
        ),
        image_row(None, jpeg(picture(2)), 2, size=(200, 100), split="test", boxes=[box("dog", 0, 0, 200, 100)]),
        image_row(None, jpeg(picture(3)), 3, size=(200, 100), split="test", boxes=[]),
        image_row(None, jpeg(picture(4)), 4, size=(200, 100), split="test", boxes=None),
    ]
    found = gathered(write_table(tmp_path / "boxes", rows, labels={"cat": 0, "dog": 1, "fox": 2}))
    boxes = found.boxes
    assert found.unit == "boxes"
    assert {entry.name: dict(entry.boxes) for entry in found.named_classes} == {
        "cat": {"train": 2},
        "dog": {"test": 1},
        "fox": {},
    }
    assert (boxes.total, boxes.difficult, boxes.images) == (3, 2, 2)
    assert (boxes.small, boxes.medium, boxes.large) == (2, 0, 1)
    assert boxes.per_image == {0: 1, 1: 1, 2: 1}
    assert boxes.relative_side.counts[-1] == 1
    assert boxes.relative_side.counts[int(25 * (400 / 20_000) ** 0.5)] == 2
    assert boxes.width_by_height[-1][-1] == 1
    assert boxes.width_by_height[4][2] == 2
    assert {name: len(samples) for name, samples in found.samples.items()} == {"cat": 1, "dog": 1}
    assert "2 images (50.0%) without a box." in texts(find_findings(found))
    page = render_page(found, draw_plots(found))
    assert 'id="boxes"' in page


def test_a_box_that_lacks_a_corner_is_none(tmp_path):
    whole = box("cat", 0, 0, 20, 20)
    lists = [[whole, None], [{**whole, "xmin": None}], [{**whole, "ymax": float("nan")}], [{**whole, "xmax": np.inf}]]
    rows = [image_row(None, jpeg(picture(i)), i, split="train", boxes=boxes) for i, boxes in enumerate(lists)]
    found = gathered(write_table(tmp_path / "t", rows, labels={"cat": 0}))
    assert (found.boxes.total, found.boxes.images, found.boxes.per_image) == (1, 1, {0: 3, 1: 1})
    assert [dict(entry.boxes) for entry in found.named_classes] == [{"train": 1}]
    assert len(found.samples["cat"]) == 1
    rows[0][schema.ANNOTATIONS] = [None, whole]
    assert len(gathered(write_table(tmp_path / "labelled", [{**rows[0], schema.LABEL_NAME: "dog"}])).samples) == 1


def test_annotations_of_another_kind_are_no_boxes(tmp_path):
    rows = pa.table({"image": [jpeg(picture(i)) for i in range(2)], "annotations": ["{}", None]})
    write_deltalake(str(tmp_path / "t"), rows)
    found = gathered(tmp_path / "t")
    assert (found.rows, found.boxes, len(found.samples[None])) == (2, None, 2)


def test_boxes_are_drawn_where_they_are(tmp_path):
    data = jpeg(Image.new("RGB", (100, 100), "white"), 95)
    row = image_row("a", data, size=(100, 100), boxes=[box("a", 20, 40, 80, 60)])
    found = gathered(write_table(tmp_path / "t", [row]))
    pixels = np.asarray(Image.open(io.BytesIO(found.samples["a"][0].jpeg)).convert("RGB")).astype(int)
    marked = pixels[..., 2] < 160
    rows, columns = np.flatnonzero(marked.any(axis=1)), np.flatnonzero(marked.any(axis=0))
    assert (rows.min(), rows.max()) == (40, 59)
    assert (columns.min(), columns.max()) == (20, 79)


@pytest.mark.parametrize("stored_format", ["raw_rgb", "png", "jpeg"])
def test_every_stored_form_is_looked_at(tmp_path, stored_format):
    def stored(image):
        if stored_format == "raw_rgb":
            return image.tobytes()
        buffer = io.BytesIO()
        image.save(buffer, stored_format)
        return buffer.getvalue()

    rows = [image_row("a", stored(picture(i)), i, stored_format=stored_format) for i in range(3)]
    found = gathered(write_table(tmp_path / "t", rows))
    assert (found.duplicates.compared, found.duplicates.unreadable) == (3, 0)
    assert len(found.samples["a"]) == 3


def test_images_whose_size_is_not_recorded_have_none(tmp_path):
    rows = [image_row("a", jpeg(picture(i)), i, size=(90 + i, 80)) for i in range(20)]
    for row in rows[:4]:
        row[schema.WIDTH] = row[schema.HEIGHT] = None
    found = gathered(write_table(tmp_path / "some", rows), near_duplicates=False)
    assert (found.sizes.distinct, found.sizes.known, found.sizes.widths) == (16, 16, (94, 109))
    assert "16 sizes, 94 to 109 pixels wide and 80 high; not recorded of 4" in render_page(found, {})
    found = gathered(write_table(tmp_path / "none", rows[:4]), near_duplicates=False)
    assert (found.sizes.distinct, found.sizes.common) == (0, ())
    assert "<dt>size</dt><dd>not recorded</dd>" in render_page(found, {})


def encoded(image, file_format="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def sixteen_bits(image):
    return encoded(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257))


def cut_out(image):
    black = Image.new("L", image.size)
    return encoded(Image.merge("RGBA", (black, black, black, image.convert("L"))))


def turned(image):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    return encoded(image.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=95, exif=exif)


@pytest.mark.parametrize("stored", [sixteen_bits, cut_out, turned])
def test_images_are_compared_as_they_are_shown(tmp_path, stored):
    rows = [image_row("a", stored(picture(i, (120, 90))), i, split=("train", "test")[i % 2]) for i in range(4)]
    shown = decode(rows[0][schema.IMAGE])
    rows.append(image_row("a", jpeg(shown, 95), 9, split="test"))
    duplicates = gathered(write_table(tmp_path / "t", rows)).duplicates
    assert (duplicates.compared, duplicates.plain, duplicates.unreadable) == (5, 0, 0)
    assert dict(duplicates.across) == {("train", "test"): 1, ("test", "train"): 1}


def test_an_emptied_table_still_has_a_profile(two, tmp_path):
    DeltaTable(str(two)).delete()
    result = profile(two, output=tmp_path / "out")
    assert result.profile.rows == 0
    assert "This version has no rows." in result.page.read_text(encoding="utf-8")
    assert result.plots == ()


def test_one_class_one_split_and_no_quarantine_read_well(tmp_path):
    rows = [image_row("only", jpeg(picture(i)), i, split="train") for i in range(4)]
    result = profile(write_table(tmp_path / "t", rows), output=tmp_path / "out")
    text = result.page.read_text(encoding="utf-8")
    assert "All images are in one split: train." in text
    assert "Nothing is in quarantine." in text
    assert 'id="boxes"' not in text
    assert {"splits", "box_sizes", "quarantine"}.isdisjoint(path.stem for path in result.plots)


def test_any_table_with_images_can_be_profiled(tmp_path):
    rows = {"image": [jpeg(picture(i)) for i in range(4)], "label": pa.array([0, 1, 1, None], pa.int32())}
    write_deltalake(str(tmp_path / "t"), pa.table(rows))
    found = gathered(tmp_path / "t")
    assert {entry.name: entry.total for entry in found.classes} == {"0": 1, "1": 2, None: 1}
    assert found.conflict_count == 0
    assert found.duplicates.compared == 4
    render_page(found, draw_plots(found))


def test_the_profile_counts_the_same_classes_as_the_version(tmp_path):
    images = [jpeg(picture(i)) for i in range(4)]

    def same(location):
        version = open_snapshot(location)
        classes = {entry.name or NO_CLASS: entry.total for entry in gathered(location, near_duplicates=False).classes}
        assert classes == class_counts(version)
        return classes

    rows = pa.table({"image": images, "label_name": ["a", "a", "b", "b"]})
    write_deltalake(str(tmp_path / "folders"), rows, partition_by=["label_name"])
    assert same(tmp_path / "folders") == {"a": 2, "b": 2}
    write_deltalake(str(tmp_path / "empty"), pa.table({"image": images, "label_name": ["a", "", None, "b"]}))
    assert same(tmp_path / "empty") == {"a": 1, "b": 1, NO_CLASS: 2}
    write_deltalake(str(tmp_path / "grown"), pa.table({"image": images, "label": [0, 0, 1, 1]}))
    rows = pa.table({"image": images, "label": [0, 0, 1, 1], "label_name": ["a", "a", "b", "b"]})
    write_deltalake(str(tmp_path / "grown"), rows, mode="append", schema_mode="merge")
    assert same(tmp_path / "grown") == {"a": 2, "b": 2, NO_CLASS: 4}


def test_splits_that_are_numbers_are_named_by_them(tmp_path):
    rows = pa.table({"image": [jpeg(picture(i)) for i in range(4)], "split": [0, 1, 1, None]})
    write_deltalake(str(tmp_path / "t"), rows)
    found = profile(tmp_path / "t", output=tmp_path / "out", near_duplicates=False).profile
    assert found.rows_by_split == {"0": 1, "1": 2, "none": 1}


def test_what_nothing_is_known_of_has_no_plot(tmp_path):
    write_deltalake(str(tmp_path / "t"), pa.table({"image": [jpeg(picture(i)) for i in range(3)]}))
    assert draw_plots(gathered(tmp_path / "t", near_duplicates=False)) == {}
    assert "image_sizes" in draw_plots(gathered(tmp_path / "t"))


def test_a_table_without_images_is_refused_by_its_columns(tmp_path):
    write_deltalake(str(tmp_path / "t"), pa.table({"a": [1]}))
    with pytest.raises(NotAnImageTableError, match=r"no column 'image' \(its columns: a\)"):
        profile(tmp_path / "t", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_process_warns_after_a_profile_as_before(two):
    def leave_silent(group):  # as two threads do whose `catch_warnings` overlap
        warnings.simplefilter("ignore")
        return group

    before = list(warnings.filters)
    scan = scan_rows(open_snapshot(two))
    assert list(for_each_group(scan, scan.groups, leave_silent)) == scan.groups
    assert list(warnings.filters) == before


def test_what_does_not_exist_is_said_before_anything_is_written(two, tmp_path):
    with pytest.raises(NotADeltaTableError):
        profile(tmp_path / "nothing", output=tmp_path / "out")
    with pytest.raises(VersionNotFoundError):
        profile(two, 7, output=tmp_path / "out")
    for wrong in ({"max_distance": 16}, {"max_distance": -1}, {"samples_per_class": -2}, {"samples_per_class": 13}):
        with pytest.raises(InvalidArgumentError):
            profile(two, output=tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output", ["file", "file/below"])
def test_an_output_that_is_no_folder_is_refused_before_an_image_is_read(two, tmp_path, monkeypatch, output):
    monkeypatch.setattr("lakelens.etl.profile.profile.gather_profile", None)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InvalidArgumentError, match="file is a file; give another folder"):
        profile(two, output=tmp_path / output)
    assert (tmp_path / "file").read_text() == "kept"


def test_matplotlib_is_asked_for_before_an_image_is_read(two, tmp_path, monkeypatch):
    monkeypatch.setattr("lakelens.etl.profile.profile.gather_profile", None)
    monkeypatch.setitem(sys.modules, "matplotlib.font_manager", None)
    with pytest.raises(MissingDependencyError, match="matplotlib"):
        profile(two, output=tmp_path / "out")


def test_a_profile_leaves_no_plot_of_an_earlier_one_that_it_has_no_data_for(tmp_path):
    location = write_table(tmp_path / "t", [image_row("a", jpeg(picture(i)), i) for i in range(3)])
    write_quarantine(location, {"empty": 1})
    first = profile(location, output=tmp_path / "out", near_duplicates=False)
    (tmp_path / "out" / "mine.png").write_bytes(b"")
    shutil.rmtree(f"{location}_quarantine")
    second = profile(location, output=tmp_path / "out", near_duplicates=False)
    assert {path.name for path in first.plots} - {path.name for path in second.plots} == {"quarantine.png"}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"mine.png", "profile.html", *(path.name for path in second.plots)}


def test_samples_do_not_depend_on_the_order_of_the_rows(tmp_path):
    rows = [image_row("a", jpeg(picture(i)), i) for i in range(30)]
    one = gathered(write_table(tmp_path / "one", [dict(row) for row in rows]), near_duplicates=False)
    other = gathered(write_table(tmp_path / "other", [dict(row) for row in rows[::-1]]), near_duplicates=False)
    assert [sample.path for sample in one.samples["a"]] == [sample.path for sample in other.samples["a"]]
    assert len(one.samples["a"]) == 12


def test_samples_of_boxes_do_not_depend_on_the_order_of_the_rows(tmp_path):
    rows = [image_row(None, jpeg(picture(i)), i, split="train", boxes=[box("a", 1, 1, 20, 20)]) for i in range(30)]
    paths = []
    for name, ordered in (("one", rows), ("other", rows[::-1])):
        location = write_table(tmp_path / name, [dict(row) for row in ordered])
        samples = gathered(location, near_duplicates=False, samples_per_class=3).samples["a"]
        paths.append([sample.path for sample in samples])
    assert paths[0] == paths[1]
    assert len(paths[0]) == 3


def test_an_image_table_writes_its_profile_without_spark(two, tmp_path):
    result = ImageTable(None, two).profile(0, tmp_path / "out", near_duplicates=False, samples_per_class=1)
    assert (result.page, result.profile.version) == (tmp_path / "out" / "profile.html", 0)
    assert result.profile.duplicates is None
    assert {name: len(samples) for name, samples in result.profile.samples.items()} == {"cat": 1, "dog": 1}


def test_the_quarantine_is_counted_by_reason_with_examples(two):
    assert read_quarantine(f"{two}_quarantine") is None
    write_quarantine(two, {"truncated": 12, "empty": 2})
    found = read_quarantine(f"{two}_quarantine")
    assert found.reasons == {"truncated": 12, "empty": 2}
    assert found.total == 14
    assert {reason: len(examples) for reason, examples in found.examples.items()} == {"truncated": 5, "empty": 2}


def test_good_news_is_said_too(tmp_path):
    splits = ("train", "validation", "test")
    rows = [image_row(("a", "b")[i % 2], jpeg(picture(i)), i, split=splits[i % 3]) for i in range(60)]
    found = find_findings(gathered(write_table(tmp_path / "t", rows)))
    assert {finding.level for finding in found} == {GOOD}
    assert "No image nearly equal to one of another split." in texts(found)


def test_a_class_that_lost_all_its_images_is_said(two):
    found = gathered(two, near_duplicates=False)
    lost = replace(found.classes[0], name="lost", number=9, rows={})
    findings = find_findings(replace(found, classes=(*found.classes, lost)))
    assert any("1 class with a number and no image any more: lost." in finding.text for finding in findings)
