"""Rules of manifests: columns found or named, every row accounted for, boxes in one convention."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import reasons

from lakelens.errors import AnnotationFileError, InvalidArgumentError
from lakelens.etl.annotations import record as an
from lakelens.etl.annotations.manifest import (
    find_columns,
    manifest_format,
    parse_json_line,
    read_csv,
    read_json,
    read_rows,
)
from lakelens.etl.annotations.record import merge_annotations
from lakelens.etl.annotations.references import resolve_reference

pytestmark = pytest.mark.unit


def path_of(reference):
    return resolve_reference(reference, "/data")


def from_csv(text):
    data = text if isinstance(text, bytes) else text.encode()
    return list(read_rows(read_csv(io.BytesIO(data), "m.csv"), "m.csv", path_of))


def from_rows(*rows):
    return list(read_rows(rows, "m.jsonl", path_of))


def test_path_label_and_split_are_read():
    a, b = from_csv("path,label,split\ncat/1.jpg,cat,train\ndog/2.jpg,dog,val\n")
    assert (a.path, a.label_name, a.split) == ("file:///data/cat/1.jpg", "cat", "train")
    assert (b.path, b.label_name, b.split) == ("file:///data/dog/2.jpg", "dog", "validation")


def test_quotes_commas_line_breaks_a_byte_order_mark_and_windows_ends_are_read():
    text = '\ufeffpath,label\r\n"a, ""b"".jpg","cat, big"\r\n\r\ncat\\1.jpg,猫\r\n'
    a, b = from_csv(text)
    assert (a.path, a.label_name) == ("file:///data/a%2C%20%22b%22.jpg", "cat, big")
    assert (b.path, b.label_name) == ("file:///data/cat/1.jpg", "猫")


@pytest.mark.parametrize("blank", ["\n", "\r\n  \r\n", "\ufeff\n\n"])
def test_blank_lines_before_the_header_are_skipped(blank):
    (row,) = from_csv(f"{blank}path,label\na.jpg,cat\n")
    assert (row.path, row.label_name) == ("file:///data/a.jpg", "cat")
    with pytest.raises(AnnotationFileError, match=r"m\.csv has no line"):
        from_csv(blank)


@pytest.mark.parametrize(
    "header", ["class,label", "label,class", "category,class_name", "label,label_name", "class_name,class"]
)
def test_the_number_of_a_class_stands_on_either_side_of_its_name(header):
    first, second = header.split(",")
    for number, name in ((first, second), (second, first)):
        row = {"path": "a.jpg", number: 3, name: "cat"}
        (found,) = from_rows(row)
        assert found.label_name == "cat"
    box = {"class": 0, "label": "dog", "xmin": 1, "ymin": 1, "xmax": 9, "ymax": 9}
    (found,) = from_rows({"path": "a.jpg", "boxes": [box]})
    assert [one.label_name for one in found.boxes] == ["dog"]


def test_a_row_with_more_fields_than_the_header_is_refused():
    with pytest.raises(AnnotationFileError, match=r"m\.csv#row=2 has 3 fields and the header 2: 'a, b\.jpg,cat'"):
        from_csv("path,label\n1.jpg,dog\na, b.jpg,cat\n")


def test_rows_shorter_than_the_header_and_blank_fields_at_their_end_are_read():
    a, b, c = from_csv("path,label,split\na.jpg\nb.jpg,cat,train,\n,cat,train\n")
    assert (a.label_name, a.split) == (None, None)
    assert (b.label_name, b.split) == ("cat", "train")
    assert (c.path, reasons(c)) == ("m.csv#row=3", [an.PATH_UNUSABLE])


def test_an_absolute_windows_path_is_quarantined_with_its_row():
    (row,) = from_csv("path,label\nC:\\images\\cat\\1.jpg,cat\n")
    assert (row.path, reasons(row)) == ("m.csv#row=1", [an.PATH_UNUSABLE])
    assert "Windows" in row.problems[0].detail


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("label,split", r"m\.csv has no column 'path' \(its columns: 'label', 'split'\)"),
        ("path,split", "neither a column 'label' nor 'boxes'"),
        ("path,label,xmin,ymin", "the columns xmin, ymin without xmax, ymax"),
        ("path,xmin,ymin,xmax,ymax", "no column 'label' for its class"),
        ("path,label,Label", "two columns 'label'"),
    ],
)
def test_a_missing_column_is_named_with_those_that_exist(header, message):
    with pytest.raises(AnnotationFileError, match=message):
        from_csv(f"{header}\n1,2,3,4,5\n")


def test_the_names_that_other_tools_use_are_known():
    header = "filename,width,height,class,xmin,ymin,xmax,ymax"
    (row,) = from_csv(f"{header}\na.jpg,640,480,cat,1,2,3.5,4\n")
    assert row.size == (640, 480)
    assert row.label_name is None
    assert [(box.label_name, box.corners) for box in row.boxes] == [("cat", (1, 2, 3.5, 4))]
    assert find_columns(["Image", "CLASS"], "m").names == {"path": "Image", "label": "CLASS"}


def test_the_name_of_a_class_counts_before_its_number():
    (row,) = from_csv("path,label,label_name\n1.jpg,2,cat\n")
    assert row.label_name == "cat"
    box = {"label": 2, "label_name": "cat", "xmin": 0, "ymin": 1, "xmax": 2, "ymax": 3}
    (row,) = from_rows({"path": "a.jpg", "annotations": [box], "label_name": None, "label": None})
    assert (row.label_name, row.boxes[0].label_name) == (None, "cat")


@pytest.mark.parametrize(
    "text",
    [
        "path,label,class\n1.jpg,dog,cat\n",
        "path,label_name,label\n1.jpg,cat,dog\n",
        "path,split,subset\n1.jpg,val,test\n",
    ],
)
def test_columns_of_one_meaning_that_disagree_are_an_error(text):
    with pytest.raises(AnnotationFileError, match=r"m\.csv#row=1: the columns '\w+' and '\w+' .* disagree: '\w+' and"):
        from_csv(text.replace("split", "label,split").replace("1.jpg,val", "1.jpg,cat,val"))


def test_one_row_per_box_becomes_one_image():
    rows = from_csv("path,label,xmin,ymin,xmax,ymax\na.jpg,cat,0,0,1,1\na.jpg,dog,2,2,3,3\nb.jpg,,,,,\n")
    a, b = merge_annotations(rows)
    assert [box.label_name for box in a.boxes] == ["cat", "dog"]
    assert (b.boxes, b.problems) == ((), ())


def test_boxes_are_a_list_or_json_text_of_one():
    boxes = [{"label": "cat", "xmin": 0, "ymin": 1, "xmax": 2, "ymax": 3, "difficult": True}]
    for value in (boxes, json.dumps(boxes)):
        (row,) = from_rows({"path": "a.jpg", "boxes": value})
        assert [(box.label_name, box.corners, box.difficult) for box in row.boxes] == [("cat", (0, 1, 2, 3), True)]
    (row,) = from_rows({"path": "a.jpg", "boxes": [{"class": "cat", "bbox": [1, 2, 3, 4]}], "label": "pets"})
    assert (row.boxes[0].corners, row.label_name) == ((1, 2, 4, 6), "pets")
    for value, boxes in [(None, None), ("", None), (" ", None), ("null", None), ([], ()), ("[]", ())]:
        (row,) = from_rows({"path": "a.jpg", "boxes": value})
        assert (row.boxes, row.problems) == (boxes, ())
    (row,) = from_rows({"path": "a.jpg", "label": "cat"})
    assert row.boxes is None


GOOD = {"label": "dog", "bbox": [0, 0, 1, 1]}
UNREADABLE = ["[", "{}", "7", 7, {"a": 1}, "[" * 100_000, "null and void"]
NOT_WHOLE = [None, 7, {}, {"label": "cat"}, {"label": "", "bbox": [0, 0, 1, 1]}, {"label": "cat", "bbox": "0 0 1 1"}]


@pytest.mark.parametrize(
    ("boxes", "kept", "found"),
    [
        *[(boxes, [], [an.ANNOTATION_UNREADABLE]) for boxes in UNREADABLE],
        *[([box, GOOD], ["dog"], [an.BOX_MALFORMED]) for box in NOT_WHOLE],
        ([GOOD] * 1_000_000, [], [an.TOO_MANY_BOXES]),
    ],
)
def test_boxes_that_are_no_list_or_too_many_quarantine_the_image_and_one_that_is_not_whole_is_lost(boxes, kept, found):
    (row,) = from_rows({"path": "a.jpg", "boxes": boxes})
    assert ([box.label_name for box in row.boxes or ()], reasons(row)) == (kept, found)


def test_an_empty_label_is_no_label_and_a_number_is_its_text():
    labels = ["", None, float("nan"), 3, 3.0, "3", False]
    rows = from_rows(*({"path": f"{i}.jpg", "label": label} for i, label in enumerate(labels)))
    assert [row.label_name for row in rows] == [None, None, None, "3", "3", "3", None]
    assert [reasons(row) for row in rows] == [[]] * 6 + [[an.ANNOTATION_UNREADABLE]]


def test_a_json_line_or_element_that_is_no_object_is_accounted_for():
    lines = ['{"path": "a.jpg", "label": "cat"}', "[1]", "{", "", "null", "[" * 100_000, '{"label": "cat"}']
    good, *lost = read_rows(map(parse_json_line, lines), "m.jsonl", path_of)
    assert good.label_name == "cat"
    assert [(row.path, reasons(row)) for row in lost] == [(f"m.jsonl#row={n}", [an.PATH_UNUSABLE]) for n in range(2, 8)]
    good, bad = from_json('[{"path": "a.jpg", "label": "cat"}, 7]')
    assert (good.label_name, bad.path, reasons(bad)) == ("cat", "m.json#row=2", [an.PATH_UNUSABLE])


def from_json(text):
    return list(read_rows(read_json(io.BytesIO(text.encode()), "m.json"), "m.json", path_of))


def test_a_json_array_and_json_lines_are_the_same_rows():
    objects = [{"path": f"{number}.jpg", "label": "cat"} for number in range(3)]
    lines = "\n\n".join(map(json.dumps, objects))
    texts = [lines, json.dumps(objects), f"\ufeff \n{json.dumps(objects, indent=2)}\r\n", f"\ufeff{lines}"]
    for text in texts:
        assert [(row.path, row.label_name, row.problems) for row in from_json(text)] == [
            (f"file:///data/{number}.jpg", "cat", ()) for number in range(3)
        ]
    assert from_json("[]") == from_json("") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"path": "a.jpg", "label": "cat"}', "is not JSON in UTF-8"),
        ('[{"path": "a.jpg", "label": "cat"}] []', "is not JSON in UTF-8.*Extra data"),
        ('{\n  "images": []\n}', "an array of objects, or JSON lines"),
    ],
)
def test_a_torn_json_array_and_an_object_on_several_lines_are_refused(text, message):
    with pytest.raises(AnnotationFileError, match=rf"m\.json.*{message}"):
        from_json(text)


@pytest.mark.parametrize("data", [b"", b"path,label\n\xff\xfe,cat\n", "path,label\na.jpg,cat\n".encode("utf-16-le")])
def test_a_file_that_is_no_csv_in_utf8_is_refused_by_name(data):
    with pytest.raises(AnnotationFileError, match=r"m\.csv"):
        from_csv(data)


def test_a_quote_that_is_never_closed_is_refused():
    with pytest.raises(AnnotationFileError, match="quote"):
        from_csv(b'path,label\n"' + b"a,b\n" * 5_000_000)


def test_the_format_is_told_by_the_suffix_and_an_unknown_one_is_refused():
    for location, kind in (("a/m.csv", "csv"), ("s3a://b/m.parquet/", "parquet"), ("m.json", "json")):
        assert manifest_format(location) == kind
    assert [manifest_format(f"M.{suffix}") for suffix in ("JSONL", "ndjson")] == ["json"] * 2
    with pytest.raises(InvalidArgumentError, match=r"\.csv, \.jsonl"):
        manifest_format("labels.txt")


values = st.none() | st.text(max_size=12) | st.integers() | st.floats() | st.booleans() | st.lists(st.integers())


@given(st.fixed_dictionaries(dict.fromkeys(("path", "label", "boxes", "split", "width", "height"), values)))
def test_no_row_makes_the_reader_raise_and_none_is_lost(row):
    (read,) = from_rows(row)
    assert read.path
    assert set(reasons(read)) <= set(an.REASONS)


def test_json_lines_may_leave_out_keys_each_on_its_own():
    rows = [
        {},
        {"path": "a.jpg", "label": "cat"},
        {"split": "test", "path": "b.jpg"},
        {"LABEL": "dog", "path": "c.jpg"},
    ]
    lost, a, b, c = from_rows(*rows)
    assert reasons(lost) == [an.PATH_UNUSABLE]
    assert (a.label_name, a.split) == ("cat", None)
    assert (b.label_name, b.split) == (None, "test")
    assert c.label_name == "dog"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le with a mark"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_csv_file_of_a_spreadsheet_is_read_as_it_was_meant(encoding, separator):
    point = "." if separator == "," else ","
    lines = [["path", "label", "x1", "y1", "x2", "y2"], ["é,1.jpg", "cat", f"1{point}5", "2", f"9{point}25", "10"]]
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=separator).writerows(lines)
    text = buffer.getvalue()
    data = ("\ufeff" + text).encode("utf-16-le") if "mark" in encoding else text.encode(encoding)
    (row,) = read_rows(read_csv(io.BytesIO(data), "m.csv"), "m.csv", str)
    assert (row.path, row.boxes[0].corners, row.problems) == ("é,1.jpg", (1.5, 2, 9.25, 10), ())


@pytest.mark.parametrize(
    "names",
    [
        *(
            "x,y,w,h",
            "X,Y,Width,Height",
            "bbox",
            "cx,cy,w,h",
            "x_center,y_center,width,height",
            "left,top,right,bottom",
        ),
        *("left,top,width,height", "bb_x,bb_y,bb_w,bb_h", "bbox_x,bbox_y,bbox_width,bbox_height", "bboxes", "polygon"),
        *(
            "bbox_x1,bbox_y1,bbox_x2,bbox_y2",
            "bounding_box",
            "box",
            "xtl,ytl,xbr,ybr",
            "center_x,center_y",
            "xc,yc,w,h",
        ),
        *("minx,miny,maxx,maxy", "Roi.X1,Roi.Y1,Roi.X2,Roi.Y2", "segmentation", "rle", "bbox.xmin,bbox.ymin"),
    ],
)
def test_columns_of_boxes_in_an_unclear_convention_are_refused_and_never_ignored(names):
    with pytest.raises(AnnotationFileError, match="boxes in one of several conventions; write xmin"):
        find_columns(["path", "label", *names.split(",")], "m.csv")
    find_columns(["path", "label", "boxes", *names.split(",")], "m.csv")
    find_columns(["path", "label", "width", "height"], "m.csv")
    find_columns(["path", "label", "boxer", "robot", "top"], "m.csv")


def test_boxes_that_a_later_json_line_has_are_not_ignored_either():
    with pytest.raises(AnnotationFileError, match=r"m.jsonl#row=2 has the columns bbox"):
        from_rows({"path": "a.jpg", "label": "cat"}, {"path": "b.jpg", "label": "cat", "bbox": [1, 2, 3, 4]})


def test_a_class_without_corners_is_a_box_that_was_lost_and_no_example_without_objects():
    empty, lost = from_csv("path,label,xmin,ymin,xmax,ymax\na.jpg,,,,,\nb.jpg,cat,,,,\n")
    assert (empty.boxes, empty.problems) == ((), ())
    assert (lost.boxes, reasons(lost)) == ((), [an.BOX_MALFORMED])


def test_numbers_with_a_decimal_comma_are_read_wherever_a_number_stands():
    (row,) = from_csv('path,label,width,height,x1,y1,x2,y2\na.jpg,cat,"640,0","480,0","1,5",2,9,10\n')
    assert (row.size, row.boxes[0].corners) == ((640, 480), (1.5, 2, 9, 10))


@pytest.mark.parametrize("text", ['{"path": "é.jpg", "label": "cat"}', '[{"path": "é.jpg", "label": "cat"}]'])
def test_json_in_utf16_with_a_mark_is_read(text):
    (row,) = read_rows(read_json(io.BytesIO(text.encode("utf-16")), "m.jsonl"), "m.jsonl", str)
    assert (row.path, row.label_name) == ("é.jpg", "cat")


CORNERS = {"label": "cat", "xmin": 1, "ymin": 1, "xmax": 5, "ymax": 5}


@pytest.mark.parametrize("left_out", [["ymax"], ["xmin", "ymin"], ["xmin", "ymin", "xmax", "ymax"]])
def test_a_json_line_that_leaves_out_corners_of_a_box_has_lost_it(left_out):
    lost = {name: value for name, value in CORNERS.items() if name not in left_out}
    a, b, c = merge_annotations(
        from_rows(
            {"path": "a", **CORNERS}, {"path": "a", **lost}, {"path": "b", **lost}, {"path": "c", "split": "train"}
        )
    )
    assert [len(a.boxes), a.label_name, reasons(a)] == [1, None, [an.BOX_MALFORMED]]
    assert [b.boxes, b.label_name, reasons(b)] == [(), None, [an.BOX_MALFORMED]]
    assert (c.boxes, reasons(c)) == (None, [])  # which nobody annotated


@pytest.mark.parametrize(
    "names", [("xmin", "ymin", "xmax", "ymay"), ("x0", "y0", "x1", "y1"), ("xmin", "ymin", "width")]
)
def test_some_corners_without_the_others_are_refused_wherever_they_come(names):
    partial = {"path": "b", "label": "cat", **dict.fromkeys(names, 1)}
    for rows in ([partial], [{"path": "a", "label": "cat"}, partial]):
        with pytest.raises(AnnotationFileError, match=r"has the columns .* without"):
            from_rows(*rows)


@pytest.mark.parametrize("others", [("x3", "y3", "x4", "y4"), ("x0", "y0", "x3", "y3")])
def test_the_corners_of_a_quadrilateral_are_no_box(others):
    header = ",".join(("path", "label", "x1", "y1", "x2", "y2", *others))
    with pytest.raises(AnnotationFileError, match="corners of a shape that is no box"):
        from_csv(f"{header}\na.jpg,ship,10,10,90,12,88,60,9,58\n")


def test_a_quote_that_opens_and_does_not_end_swallows_no_rows():
    with pytest.raises(AnnotationFileError, match="a quote may lack its end"):
        from_csv('path,label\na.jpg,"cat\nb.jpg,dog\nc.jpg,cat\n')


@pytest.mark.parametrize("value", ["1,024", "12,345,678", "3,141"])
def test_a_number_that_may_have_thousands_is_refused(value):
    with pytest.raises(AnnotationFileError, match=rf"row=1: xmax is '{value}', which has thousands or a decimal comma"):
        from_csv(f'path,label,xmin,ymin,xmax,ymax\na.jpg,cat,1,2,"{value}",4\n')


def test_a_mark_of_a_difficult_box_is_read_however_it_is_written_and_blank_cells_are_none():
    marks = ("1.0", "yes", " 1", "True", "0.0", "no", "")
    rows = "\n".join(f"{n}.jpg,cat,1,2,3,4,{mark}" for n, mark in enumerate(marks))
    found = from_csv(f"path,label,xmin,ymin,xmax,ymax,difficult\n{rows}\nn.jpg, , , , , ,\n")
    assert [row.boxes[0].difficult for row in found[:-1]] == [True] * 4 + [False] * 3
    nothing = {"label": None, **dict.fromkeys(("xmin", "ymin", "xmax", "ymax"), float("nan"))}
    (frame,) = from_rows({"path": "n", **nothing})
    assert [(row.boxes, reasons(row)) for row in (found[-1], frame)] == [((), []), ((), [])]


@pytest.mark.parametrize("corners", [(0.1, 0.2, 0.5, 1.0), (0, 0, 1, 0.5)])
def test_corners_that_are_fractions_are_refused(corners):
    header, values = "path,label,xmin,ymin,xmax,ymax", ",".join(map(str, corners))
    with pytest.raises(AnnotationFileError, match="fractions of the image's sides are no pixels"):
        from_csv(f"{header}\na.jpg,cat,{values}\nb.jpg,dog,{values}\n")
    assert len(from_csv(f"{header}\na.jpg,cat,{values}\nb.jpg,dog,1,1,2,2\nc.jpg,,,,,\n")) == 3


def test_of_two_columns_of_boxes_none_is_ignored():
    cat = [{"label": "cat", "bbox": [1, 1, 2, 2]}]
    (row,) = from_rows({"path": "a", "boxes": None, "annotations": cat})
    assert [box.label_name for box in row.boxes] == ["cat"]
    with pytest.raises(AnnotationFileError, match="mean the same and disagree"):
        from_rows({"path": "a", "boxes": [], "annotations": cat})
    with pytest.raises(AnnotationFileError, match="has corners and 'boxes', two ways to write boxes"):
        from_rows({"path": "a", **CORNERS, "boxes": cat})
