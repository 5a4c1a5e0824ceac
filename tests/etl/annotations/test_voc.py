"""Rules of Pascal VOC: converted once, real files read, hostile ones refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import reasons

from lakelens.etl.annotations import record as an
from lakelens.etl.annotations.boxes import check_boxes
from lakelens.etl.annotations.record import Annotation
from lakelens.etl.annotations.voc import (
    image_key,
    parse_split_list,
    parse_voc,
    split_list,
    splits_of_list,
    with_split_lists,
)

pytestmark = pytest.mark.unit


def voc_object(name="cat", corners=(1, 1, 1, 1), more=""):
    sides = "".join(f"<{s}>{c}</{s}>" for s, c in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True))
    return f"<object><name>{name}</name>{more}<bndbox>{sides}</bndbox></object>"


def voc(*objects, size=(500, 375)):
    return (
        "<annotation><folder>VOC2007</folder><filename>000005.jpg</filename><source><image>flickr</image></source>"
        f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size><segmented>0</segmented>"
        f"{''.join(objects)}</annotation>"
    ).encode()


PART = "<part><name>head</name><bndbox><xmin>7</xmin><ymin>7</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></part>"
FLAGS = "<pose>Left</pose><truncated>1</truncated><occluded>0</occluded><difficult>{}</difficult>"


@pytest.mark.parametrize(
    ("objects", "boxes"),
    [
        ([voc_object(corners=(1, 1, 500, 375))], [("cat", 0, 0, 500, 375, False)]),
        ([voc_object(corners=(263, 211, 263, 211))], [("cat", 262, 210, 263, 211, False)]),
        (
            [voc_object(corners=("45.70000076293945", "1.5", " 60.25\n", "1e2"))],
            [("cat", 44.70000076293945, 0.5, 60.25, 100, False)],
        ),
        ([voc_object("person", (10, 20, 30, 40), more=PART)], [("person", 9, 19, 30, 40, False)]),
        (
            [voc_object("person", (10, 20, 30, 40)).replace("</object>", f"{PART}</object>")],
            [("person", 9, 19, 30, 40, False)],
        ),
        (
            [voc_object(more=FLAGS.format(1)), voc_object(more=FLAGS.format(0))],
            [("cat", 0, 0, 1, 1, True), ("cat", 0, 0, 1, 1, False)],
        ),
    ],
)
def test_one_based_inclusive_pixels_become_half_open(objects, boxes):
    for head in ("<annotation>", '<annotation xmlns="http://x">', '<annotation xmlns="http://x" xmlns:a="http://y">'):
        read = parse_voc(voc(*objects).replace(b"<annotation>", head.encode()), "p")
        assert [(box.label_name, *box.corners, box.difficult) for box in read.boxes] == boxes
        assert (read.path, read.size, read.problems) == ("p", (500, 375), ())


def test_an_image_without_objects_has_no_boxes_and_a_declared_size_of_zero_is_unknown():
    assert parse_voc(voc(), "p") == Annotation("p", boxes=(), size=(500, 375))
    assert parse_voc(voc(size=(0, 0)), "p") == Annotation("p", boxes=())


def test_class_names_may_be_of_any_script_and_any_encoding_of_the_tools():
    text = voc(voc_object("锚杆 <é>".replace("<", "&lt;"))).decode()
    for encoding in ("utf-8", "utf-16", "gbk"):
        head = f'<?xml version="1.0" encoding="{encoding}"?>'
        read = parse_voc((head + text.replace("é", "e")).encode(encoding), "p")
        assert [box.label_name for box in read.boxes] == ["锚杆 <e>"]
    latin = ('<?xml version="1.0" encoding="iso-8859-1"?>' + voc(voc_object("é")).decode()).encode("latin-1")
    assert parse_voc(latin, "p").boxes[0].label_name == "é"
    assert parse_voc(b"\xef\xbb\xbf" + voc(voc_object("é")), "p").boxes[0].label_name == "é"


SECOND_BOX = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></object>"
TWO_BOXES = voc_object(corners=(5, 6, 7, 8)).replace("</object>", SECOND_BOX)


@pytest.mark.parametrize(
    "text",
    [
        f"<object>{SECOND_BOX}",
        "<object><name>cat</name></object>",
        "<object><name>cat</name><bndbox><xmin>1</xmin></bndbox></object>",
        "<object><name>cat</name><polygon><x1>1</x1></polygon></object>",
        voc_object("  "),
        voc_object("x" * 500_000),
        voc_object(corners=("one", 1, 2, 2)),
        voc_object(corners=("", 1, 2, 2)),
        # The corners of two boxes are not mixed.
        TWO_BOXES,
        TWO_BOXES.replace("<xmin>5</xmin>", ""),
        voc_object().replace("</object>", "<bndbox></bndbox></object>"),
        # An object in another place is lost and makes no example without objects.
        f"<objects>{voc_object()}{voc_object()}</objects>",
        voc_object().replace("object>", "Object>"),
        f"<image>{voc_object()}</image>",
        voc_object().replace("object>", "item>"),
    ],
    ids=range(15),
)
def test_an_object_that_is_not_whole_or_elsewhere_costs_itself_alone(text):
    read = parse_voc(voc(text, voc_object("dog", (2, 2, 3, 3))), "p")
    assert [box.label_name for box in read.boxes] == ["dog"]
    assert set(reasons(read)) == {an.BOX_MALFORMED}


BILLION_LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY l0 "lol">'
    + "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
    + "]><annotation><filename>&l9;</filename></annotation>"
).encode()


@pytest.mark.parametrize(
    "data",
    [
        BILLION_LAUGHS,
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation><filename>&x;</filename></annotation>',
        b'<!DOCTYPE annotation SYSTEM "http://localhost/x.dtd"><annotation/>',
        b"<annotation>" * 100_000,
        b"<annotation><object>&undefined;</object></annotation>",
        b'<?xml version="1.0" encoding="klingon"?><annotation/>',
        b'<?xml version="1.0" encoding="gbk"?><annotation>\xff\xff</annotation>',
        b"<html><body/></html>",
        b"\x89PNG\r\n\x1a\n",
        b"",
        b"<annotation/><annotation/>",
        b"<annotation>" + b"<a/>" * 2_100_000 + b"</annotation>",  # it takes gigabytes to parse
    ],
    ids=range(12),
)
def test_a_hostile_or_foreign_file_is_refused_and_says_so(data):
    read = parse_voc(data, "p")
    assert reasons(read) == [an.ANNOTATION_UNREADABLE]
    assert read.boxes is None
    assert read.quarantine is not None
    assert len(read.problems[0].detail) <= 200


def test_a_file_cut_off_at_any_byte_is_unreadable_and_never_half_read():
    whole = voc(voc_object("cat", (1, 2, 3, 4)), voc_object("dog", (5, 6, 7, 8)))
    for length in range(len(whole)):
        read = parse_voc(whole[:length], "p")
        assert read.boxes is None
        assert reasons(read) == [an.ANNOTATION_UNREADABLE]
    assert len(parse_voc(whole, "p").boxes) == 2


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 50))
@settings(max_examples=300, deadline=None)
def test_no_bytes_make_the_parser_raise(noise, position, cut):
    whole = voc(voc_object("cat", (1, 2, 3, 4)))
    read = parse_voc(whole[:position] + noise + whole[position + cut :], "p")
    assert read.path == "p"
    assert set(reasons(read)) <= set(an.REASONS)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("JPEGImages/000005.jpg", "000005"),
        ("Annotations/000005.xml", "000005"),
        ("VOC2007/JPEGImages/000005.jpg", "VOC2007/000005"),
        ("VOC2007/Annotations/000005.xml", "VOC2007/000005"),
        ("JPEGImages/sub/a.b.jpg", "sub/a.b"),
        ("train/x.jpg", "train/x"),
        ("train/x.xml", "train/x"),
    ],
)
def test_an_image_and_its_annotation_share_a_key(path, key):
    assert image_key(path) == key


@pytest.mark.parametrize(
    ("path", "found", "splits"),
    [
        ("ImageSets/Main/train.txt", ("", "train"), {"train"}),
        ("ImageSets/Main/val.txt", ("", "val"), {"validation"}),
        ("ImageSets/Main/test.txt", ("", "test"), {"test"}),
        ("VOC2012/ImageSets/Main/trainval.txt", ("VOC2012/", "trainval"), {"train", "validation"}),
        ("ImageSets/Main/cat_train.txt", None, None),
        ("ImageSets/Segmentation/train.txt", None, None),
        ("ImageSets/Main/train.txt.bak", None, None),
        ("xImageSets/Main/train.txt", None, None),
    ],
)
def test_only_the_lists_of_whole_splits_give_splits(path, found, splits):
    assert split_list(path) == found
    assert splits is None or splits_of_list(found[1]) == splits


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (
            ["\ufeff000005\r\n000007  1\n\n  sub/000009 -1\nmy image\nfoto 2.JPG\nIMG 7.png 0\nv1.5\n"],
            ["000005", "000007", "sub/000009", "my image", "foto 2", "IMG 7", "v1.5"],
        ),
        (["photo 0", "photo 1", "photo 2"], ["photo 0", "photo 1", "photo 2"]),
        (["photo", "photo 1"], ["photo", "photo 1"]),
        (["my photo.jpg", "my photo 1.jpg", "your photo 1"], ["my photo", "my photo 1", "your photo 1"]),
        (["photo 1", "photo 2", "shot 1"], ["photo 1", "photo 2", "shot 1"]),
        (["000001 1", "000001 -1", "photo 2"], ["000001", "000001", "photo 2"]),
        (["a.jpg 1", "a.jpg 1"], ["a"]),
        (["scan.rgb", "scan.PNG"], ["scan.rgb", "scan"]),
        (["a b", "a b 1"], ["a b", "a b 1"]),
        (["000005 -1", "000007\t1"], ["000005", "000007"]),
    ],
)
def test_a_split_list_names_an_image_a_line_and_its_last_number_where_other_lines_begin_alike(lines, names):
    assert list(parse_split_list("\n".join(lines), "VOC2007/")) == [f"VOC2007/{name}" for name in names]


@pytest.mark.parametrize("corners", [(4, 6, 9, 8), (9, 6, 4, 8), (4, 8, 9, 6), (9, 8, 4, 6)])
def test_corners_in_the_wrong_order_mean_the_same_pixels(corners):
    (box,) = parse_voc(voc(voc_object("cat", corners)), "p").boxes
    checked = check_boxes([box], (500, 375))
    assert checked.boxes[0].corners == (3, 5, 9, 8)
    assert len(checked.problems) == (corners != (4, 6, 9, 8))


@pytest.mark.parametrize(
    ("lists", "split", "found"),
    [
        ((), None, []),
        (("train", "trainval"), "train", []),
        (("val", "trainval"), "validation", []),
        (("trainval",), "train", []),
        (("test",), "test", []),
        (("train", "val"), None, [an.SPLIT_CONFLICT]),
        (("trainval", "test"), None, [an.SPLIT_CONFLICT]),
        (("train", "test", "trainval"), None, [an.SPLIT_CONFLICT]),
    ],
)
def test_the_lists_that_name_an_image_give_its_split_and_two_splits_are_a_conflict(lists, split, found):
    named = with_split_lists(Annotation("a"), lists)
    assert (named.split, reasons(named)) == (split, found)
