"""Rules of manifests: columns found or named, every row accounted for, boxes in one convention."""

from __future__ import annotations

import csv
import io
import itertools
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


def read(given):
    """The rows of a CSV text, or of some objects."""
    return from_csv(given) if isinstance(given, (str, bytes)) else from_rows(*given)


SIDES = "xmin,ymin,xmax,ymax"
LABELS = [None, float("nan"), 3, 3.0, "3"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("path,label,split\ncat/1.jpg,cat,train\n2.jpg,dog,val\n", "cat/1.jpg cat train; 2.jpg dog validation"),
        ('\ufeffpath,label\r\n"a, ""b"".jpg","cat, big"\r\n\r\ncat\\1.jpg,猫\r\n',
         "a%2C%20%22b%22.jpg cat, big None; cat/1.jpg 猫 None"),
        ("path,label,split\na.jpg\nb.jpg,cat,train,\n,cat,train\n",
         "a.jpg None None; b.jpg cat train; m.csv#row=3 None None path_unusable"),
        ("path,label\nC:\\images\\cat\\1.jpg,cat\n", "m.csv#row=1 None None path_unusable"),
        ("\npath,label\na.jpg,cat\n", "a.jpg cat None"),
        ("\r\n  \r\npath,label\na.jpg,cat\n", "a.jpg cat None"),
        ("\ufeff\n\npath,label\na.jpg,cat\n", "a.jpg cat None"),
        ("Image,CLASS\na.jpg,cat\n", "a.jpg cat None"),
        ("path,label,label_name\n1.jpg,2,cat\n", "1.jpg cat None"),
        ("path,label\n1.jpg,\n", "1.jpg None None"),
        ([{"path": "a", "label": label} for label in LABELS],
         "a None None; a None None; a 3 None; a 3 None; a 3 None"),
        ([{"path": "a", "label": False}], "a None None annotation_unreadable"),
        ([{}, {"path": "a", "label": "cat"}, {"split": "test", "path": "b"}, {"LABEL": "dog", "path": "c"}],
         "m.jsonl#row=1 None None path_unusable; a cat None; b None test; c dog None"),
        *(([{"path": "a", name: "cat", number: 3}], "a cat None") for one, other in (
            ("class", "label"), ("category", "class_name"), ("label", "label_name"), ("class_name", "class"),
        ) for name, number in ((one, other), (other, one))),
    ],
)  # fmt: skip
def test_path_label_and_split_are_read_and_each_row_is_accounted_for(given, found):
    rows = [[row.path.removeprefix("file:///data/"), row.label_name, row.split, *reasons(row)] for row in read(given)]
    assert "; ".join(" ".join(map(str, row)) for row in rows) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("filename,width,height,class,xmin,ymin,xmax,ymax\na,640,480,cat,1,2,3.5,4\n", "a cat 1 2 3.5 4"),
        (f"path,label,{SIDES}\na,cat,0,0,1,1\na,dog,2,2,3,3\nb,,,,,\n", "a cat 0 0 1 1 dog 2 2 3 3; b"),
        (f"path,label,{SIDES}\na,,,,,\nb,cat,,,,\n", "a; b box_malformed"),
        ('path,label,width,height,x1,y1,x2,y2\na,cat,"640,0","480,0","1,5",2,9,10\n', "a cat 1.5 2 9 10"),
        # Of which one box alone is in fractions.
        (f"path,label,{SIDES}\na,cat,0.1,0.2,0.5,1.0\nb,dog,1,1,2,2\nc,,,,,\n",
         "a cat 0.1 0.2 0.5 1; b dog 1 1 2 2; c"),
        ([{"path": "a", "label_name": None, "label": None,
           "annotations": [{"label": 2, "label_name": "cat", "bbox": [0, 1, 2, 3]}]}], "a cat 0 1 2 4"),
        ([{"path": "a", "boxes": [{"class": 0, "label": "dog", "bbox": [1, 1, 9, 9]}]}], "a dog 1 1 10 10"),
        ([{"path": "a", "boxes": None, "annotations": [{"label": "cat", "bbox": [1, 1, 2, 2]}]}], "a cat 1 1 3 3"),
    ],
)  # fmt: skip
def test_boxes_are_read_with_their_class_from_columns_of_many_names(given, found):
    rows = list(merge_annotations(read(given)))
    shown = [
        [row.path.removeprefix("file:///data/"), *(f"{part:g}" if isinstance(part, float) else part
         for box in row.boxes for part in (box.label_name, *box.corners)), *reasons(row)] for row in rows
    ]  # fmt: skip
    assert "; ".join(" ".join(row) for row in shown) == found
    assert {row.label_name for row in rows} == {None}
    assert [row.size for row in rows if row.size] == [(640, 480)] * ("width" in str(given))


CAT = {"path": "a", "label": "cat"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", r"m\.csv has no line"),
        ("\ufeff\n\n", r"m\.csv has no line"),
        (b"path,label\n\xff\xfe,cat\n", r"m\.csv"),
        ("path,label\na.jpg,cat\n".encode("utf-16-le"), r"m\.csv"),
        ("label,split\n1,2\n", r"m\.csv has no column 'path' \(its columns: 'label', 'split'\)"),
        ("path,split\n1,2\n", "neither a column 'label' nor 'boxes'"),
        ("path,label,xmin,ymin\n1,2,3,4\n", "the columns xmin, ymin without xmax, ymax"),
        (f"path,{SIDES}\n1,2,3,4,5\n", "no column 'label' for its class"),
        ("path,label,Label\n1,2,3\n", "two columns 'label'"),
        ("path,label\n1.jpg,dog\na, b.jpg,cat\n",
         r"m\.csv#row=2 has 3 fields and the header 2: 'a, b\.jpg,cat'"),
        ("path,label,class\n1.jpg,dog,cat\n", r"#row=1: the columns '\w+' and '\w+' .* disagree: '\w+' and"),
        ("path,label_name,label\n1.jpg,cat,dog\n", r"#row=1: the columns '\w+' and '\w+' .* disagree: '\w+' and"),
        ("path,label,split,subset\n1.jpg,cat,val,test\n", r"#row=1: the columns .* disagree: '\w+' and"),
        ('path,label\n"' + "a,b\n" * 5_000_000, "quote"),
        ('path,label\na.jpg,"cat\nb.jpg,dog\nc.jpg,cat\n', "a quote may lack its end"),
        *((f'path,label,{SIDES}\na.jpg,cat,1,2,"{number}",4\n',
           rf"row=1: xmax is '{number}', which has thousands or a decimal comma")
          for number in ("1,024", "12,345,678", "3,141")),
        *((f"path,label,{SIDES}\na.jpg,cat,{corners}\nb.jpg,dog,{corners}\n",
           "fractions of the image's sides are not pixels") for corners in ("0.1,0.2,0.5,1.0", "0,0,1,0.5")),
        *((f"path,label,x1,y1,x2,y2,{others}\na.jpg,ship,10,10,90,12,88,60,9,58\n",
           "corners of a shape that is no box") for others in ("x3,y3,x4,y4", "x0,y0,x3,y3")),
        ([CAT, {**CAT, "bbox": [1, 2, 3, 4]}], r"m.jsonl#row=2 has the columns bbox"),
        *((rows, r"has the columns .* without")
          for names in (("xmin", "ymin", "xmax", "ymay"), ("x0", "y0", "x1", "y1"), ("xmin", "ymin", "width"))
          for partial in ({**CAT, **dict.fromkeys(names, 1)},) for rows in ([partial], [CAT, partial])),
        ([{"path": "a", "boxes": [], "annotations": [{"label": "cat"}]}], "mean the same and disagree"),
        ([{**CAT, "xmin": 1, "ymin": 1, "xmax": 5, "ymax": 5, "boxes": [{"label": "cat"}]}],
         "has corners and 'boxes', two ways to write boxes"),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_a_manifest_that_means_nothing_or_two_things_is_refused_by_name(given, words):
    with pytest.raises(AnnotationFileError, match=words):
        read(given)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"path": "a.jpg", "label": "cat"}', "is not JSON in UTF-8"),
        ('[{"path": "a.jpg", "label": "cat"}] []', "is not JSON in UTF-8.*Extra data"),
        ('{\n  "images": []\n}', "an array of objects, or JSON lines"),
    ],
)
def test_a_torn_json_array_and_an_object_on_several_lines_are_refused(text, words):
    with pytest.raises(AnnotationFileError, match=rf"m\.json.*{words}"):
        from_json(text)


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


def test_a_json_line_or_element_that_is_no_object_is_accounted_for():
    lines = ['{"path": "a.jpg", "label": "cat"}', "[1]", "{", "", "null", "[" * 100_000, '{"label": "cat"}']
    good, *lost = read_rows(map(parse_json_line, lines), "m.jsonl", path_of)
    assert good.label_name == "cat"
    assert [(row.path, reasons(row)) for row in lost] == [(f"m.jsonl#row={n}", [an.PATH_UNUSABLE]) for n in range(2, 8)]
    good, bad = from_json('[{"path": "a.jpg", "label": "cat"}, 7]')
    assert (good.label_name, bad.path, reasons(bad)) == ("cat", "m.json#row=2", [an.PATH_UNUSABLE])


def from_json(text, encoding="utf-8"):
    return list(read_rows(read_json(io.BytesIO(text.encode(encoding)), "m.json"), "m.json", path_of))


def test_a_json_array_and_json_lines_are_the_same_rows():
    objects = [{"path": f"{number}.jpg", "label": "cat"} for number in range(3)]
    lines = "\n\n".join(map(json.dumps, objects))
    array, spread = json.dumps(objects), json.dumps(objects, indent=2)
    texts = [(text, "utf-8") for text in (lines, array, f"\ufeff \n{spread}\r\n", f"\ufeff{lines}")]
    for text, encoding in (*texts, (lines, "utf-16"), (array, "utf-16")):
        assert [(row.path, row.label_name, row.problems) for row in from_json(text, encoding)] == [
            (f"file:///data/{number}.jpg", "cat", ()) for number in range(3)
        ]
    assert from_json("[]") == from_json("") == []


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


UNCLEAR = """
x,y,w,h X,Y,Width,Height cx,cy,w,h xc,yc,w,h x_center,y_center,width,height center_x,center_y bb_x,bb_y,bb_w,bb_h
bbox_x,bbox_y,bbox_width,bbox_height bbox_x1,bbox_y1,bbox_x2,bbox_y2 bbox.xmin,bbox.ymin Roi.X1,Roi.Y1,Roi.X2,Roi.Y2
left,top,right,bottom left,top,width,height minx,miny,maxx,maxy xtl,ytl,xbr,ybr
bbox bboxes bounding_box box polygon segmentation rle
"""


@pytest.mark.parametrize("names", UNCLEAR.split())
def test_columns_of_boxes_in_an_unclear_convention_are_refused_and_never_ignored(names):
    with pytest.raises(AnnotationFileError, match="boxes in one of several conventions; write xmin"):
        find_columns(["path", "label", *names.split(",")], "m.csv")
    find_columns(["path", "label", "boxes", *names.split(",")], "m.csv")
    find_columns(["path", "label", "width", "height"], "m.csv")
    find_columns(["path", "label", "boxer", "robot", "top"], "m.csv")


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


def test_a_mark_of_a_difficult_box_is_read_however_it_is_written_and_blank_cells_are_none():
    marks = ("1.0", "yes", " 1", "True", "0.0", "no", "")
    rows = "\n".join(f"{n}.jpg,cat,1,2,3,4,{mark}" for n, mark in enumerate(marks))
    found = from_csv(f"path,label,xmin,ymin,xmax,ymax,difficult\n{rows}\nn.jpg, , , , , ,\n")
    assert [row.boxes[0].difficult for row in found[:-1]] == [True] * 4 + [False] * 3
    nothing = {"label": None, **dict.fromkeys(("xmin", "ymin", "xmax", "ymax"), float("nan"))}
    (frame,) = from_rows({"path": "n", **nothing})
    assert [(row.boxes, reasons(row)) for row in (found[-1], frame)] == [((), []), ((), [])]
