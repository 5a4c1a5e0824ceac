"""Rules of COCO instances: gaps and orphans are accounted for by name, hostile JSON is refused."""

from __future__ import annotations

import io
import json
import math
import tracemalloc

import pytest
from problems import reasons

from lakelens.errors import AnnotationFileError, InvalidArgumentError
from lakelens.etl.annotations import record as an
from lakelens.etl.annotations.boxes import Problem
from lakelens.etl.annotations.coco import find_coco_files, named_coco_file, read_coco

pytestmark = pytest.mark.unit

CATEGORIES = [{"id": 1, "name": "cat"}, {"id": 90, "name": "dog"}]
IMAGES = [
    {"id": 9, "file_name": "b.jpg", "width": 640, "height": 480},
    {"id": 7, "file_name": "a.jpg", "width": 320, "height": 240},
]
ANNOTATIONS = [
    {"id": 1, "image_id": 9, "category_id": 90, "bbox": [10.5, 20, 30, 40.25], "iscrowd": 0, "segmentation": [[1, 2]]},
    {"id": 2, "image_id": 9, "category_id": 1, "bbox": [0, 0, 1, 1], "iscrowd": 1},
]


def document(images=IMAGES, annotations=ANNOTATIONS, categories=CATEGORIES, **more):
    return {"info": {"year": 2017}, **more, "images": images, "annotations": annotations, "categories": categories}


def read(content, split=None, path_of=lambda name: f"/{name}"):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return list(read_coco(io.BytesIO(data), "x.json").annotations(path_of, split))


def test_boxes_of_corner_and_size_become_half_open():
    a, b = read(document())
    assert (a.path, a.boxes, a.size) == ("/a.jpg", (), (320, 240))
    assert (b.path, b.size, b.problems) == ("/b.jpg", (640, 480), ())
    assert [(box.label_name, box.corners, box.difficult) for box in b.boxes] == [
        ("dog", (10.5, 20, 40.5, 60.25), False),
        ("cat", (0, 0, 1, 1), True),
    ]


def test_neither_the_order_of_the_arrays_nor_a_byte_order_mark_nor_a_key_counts_of_its_own_matters():
    expected = read(document())
    assert read(b"\xef\xbb\xbf" + json.dumps(document()).encode()) == expected
    for keys in (("annotations", "categories", "images"), ("categories", "images", "annotations")):
        assert read({key: document()[key] for key in keys}) == expected
    counted = ([{**entry, "counts": 3} for entry in entries] for entries in (IMAGES, ANNOTATIONS))
    assert read(document(*counted)) == expected


def test_annotations_without_an_image_are_accounted_for_by_image_id():
    orphans = [{"image_id": 5, "category_id": 1, "bbox": [0, 0, 1, 1]}] * 3 + [{"category_id": 1}, "no object", None]
    records = read(document(annotations=ANNOTATIONS + orphans))
    lost = [record for record in records if reasons(record) == [an.IMAGE_MISSING]]
    assert [record.path for record in lost] == ["x.json#image_id=5", "x.json#no_image_id"]
    assert "3 annotations" in lost[0].problems[0].detail
    assert "3 annotations" in lost[1].problems[0].detail
    assert len(records) == 4


BOX = {"image_id": 7, "category_id": 1, "bbox": [0, 0, 1, 1]}
STRANGE = [{**BOX, "category_id": number} for number in (2, 3, 4)] + [{"image_id": 7, "bbox": [0, 0, 1, 1]}]
UNNAMED = [*CATEGORIES, {"id": 3}, {"id": 4, "name": " "}, 5]
NO_BOXES = [None, [], [1, 2, 3], [1, 2, 3, 4, 5], ["a", 1, 1, 1], {"x": 1}, [None] * 4, [[1]] * 4]
NO_NAMES = [{"id": 3}, 5, None, "c"]
NO_IDS = [{"file_name": "c.jpg"}, {"id": True, "file_name": "c.jpg"}]
NONE = ([], [])


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"annotations": []}, {"/a.jpg": NONE, "/b.jpg": NONE}),
        # Without the key nobody has looked at the images.
        ({"annotations": None}, {"/a.jpg": (None, []), "/b.jpg": (None, [])}),
        (
            {"annotations": STRANGE, "categories": UNNAMED},
            {"/a.jpg": ([], [an.BOX_CLASS_UNKNOWN] * 4), "/b.jpg": NONE},
        ),
        *[
            ({"annotations": [{**BOX, "bbox": bbox}]}, {"/a.jpg": ([], [an.BOX_MALFORMED]), "/b.jpg": NONE})
            for bbox in NO_BOXES
        ],
        ({"annotations": [BOX] * (an.MAX_BOXES_PER_IMAGE + 1)}, {"/a.jpg": ([], [an.TOO_MANY_BOXES]), "/b.jpg": NONE}),
        (
            {"annotations": [], "images": [*IMAGES, {"id": 9, "file_name": "c.jpg"}]},
            {"/a.jpg": NONE, **dict.fromkeys(("/b.jpg", "/c.jpg"), ([], [an.ANNOTATION_UNREADABLE]))},
        ),
        *[
            ({"annotations": [BOX], "images": [*IMAGES, entry]},
             {"/a.jpg": ([0], []), "/b.jpg": NONE, path: ([], [an.ANNOTATION_UNREADABLE])})
            for entries, path in ((NO_NAMES, "/"), (NO_IDS, "/c.jpg")) for entry in entries
        ],
        # Coordinates that are not finite are left to the check of boxes.
        ({"annotations": [{**BOX, "bbox": [1e400, 0, 1, 1]}]}, {"/a.jpg": ([math.inf], []), "/b.jpg": NONE}),
        # One image under two ids keeps the boxes of both.
        (
            {"annotations": [BOX, {**BOX, "image_id": 8}], "images": [*IMAGES, {"id": 8, "file_name": "a.jpg"}]},
            {"/a.jpg": ([0, 0], []), "/b.jpg": NONE},
        ),
        # An image is no example without objects where an annotation names no image.
        (
            {"annotations": [BOX, {**BOX, "image_id": None}]},
            {"/a.jpg": ([0], []), "/b.jpg": (None, []), "x.json#no_image_id": (None, [an.IMAGE_MISSING])},
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_costs_the_box_or_the_image_alone_and_has_its_reason(changes, found):
    content = document(**{"annotations": ANNOTATIONS, **changes})
    records = read({name: value for name, value in content.items() if value is not None})
    lefts = [None if record.boxes is None else [box.xmin for box in record.boxes] for record in records]
    assert {one.path: (left, reasons(one)) for one, left in zip(records, lefts, strict=True)} == found


def test_an_annotation_that_is_given_twice_is_one_box():
    first, *_ = read(document(annotations=[{**BOX, "id": 5}] * 3 + [{**BOX, "id": 6}]))
    assert len(first.boxes) == 2
    assert first.problems == (Problem(an.ANNOTATION_REPEATED, "2 times"),)


def test_a_file_name_that_is_no_path_is_accounted_for():
    def refuse(name):
        raise InvalidArgumentError(name)

    assert [reasons(record) for record in read(document(), path_of=refuse)] == [[an.PATH_UNUSABLE]] * 2


def test_ids_compare_by_value_and_text_that_is_no_number_as_it_is():
    images = [{"id": "a1", "file_name": "a.jpg"}, {"id": 7.0, "file_name": "b.jpg"}, {"id": "12", "file_name": "c.jpg"}]
    given = [("a1", 1), (7, "1"), ("7", 1.0), ("7.0", "1.0"), (12, 1), (12.0, 1), ("007", 1)]
    objects = [{"image_id": image, "category_id": kind, "bbox": [0, 0, 1, 1]} for image, kind in given]
    a, b, c, lost = read(document(images=images, annotations=objects))
    assert (len(a.boxes), len(b.boxes), len(c.boxes), reasons(lost)) == (1, 3, 2, [an.IMAGE_MISSING])
    assert reasons(a) + reasons(b) + reasons(c) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": [{"id": 7, "file_name": "a"}, {"id": "7", "file_name": "b"}]}, r"images has the ids 7 and '7'"),
        ({"categories": [{"id": "1.0", "name": "a"}, {"id": 1, "name": "b"}]}, r"categories has the ids '1.0' and 1,"),
        ({"categories": [{"id": 1, "name": "a"}, {"id": 1.0, "name": "b"}]}, "id 1 two names, 'a' and 'b'"),
        ({"annotations": [{**BOX, "id": 5}, {**BOX, "id": 5, "bbox": [1, 1, 2, 2]}]}, "the id 5 twice"),
        ({"annotations": [{**BOX, "id": "5"}, {**BOX, "id": 5, "category_id": 2}]}, "the id 5 twice"),
    ],
)
def test_ids_that_mean_two_things_are_an_error(changes, words):
    with pytest.raises(AnnotationFileError, match=words):
        read(document(**changes))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"images": {}}',
        b'{"images": []} x',
        b'{"images": [{"id": 1, "file_name": "\xff"}]}',
        b'{"images": [' + b"[" * 100_000,
        b'{"images": [' + b'{"a":' * 100_000,
        b'{"images": [1' + b"0" * 10_000 + b"]}",
        b'{"categories": []}',
        b"\x89PNG",
    ],
    ids=range(12),
)
def test_what_is_no_coco_file_is_refused_by_name(data):
    with pytest.raises(
        AnnotationFileError, match=r"^x\.json( is not a COCO instances file| is not JSON in UTF-8|: its JSON values)"
    ) as caught:
        read(data)
    assert not isinstance(caught.value.__cause__, AnnotationFileError)


def test_a_file_cut_off_at_any_byte_is_refused():
    whole = json.dumps(document(), ensure_ascii=False).encode()
    for length in range(len(whole)):
        with pytest.raises(AnnotationFileError):
            read(whole[:length])


def test_a_json_file_beyond_the_bound_is_refused_with_the_advice_to_split_it(monkeypatch):
    monkeypatch.setattr(an, "MAX_JSON_BYTES", 100)
    with pytest.raises(AnnotationFileError, match=r"more than 100 bytes.*split it.*JSON lines"):
        read(document())


def test_polygons_are_dropped_while_the_file_is_read():
    polygons = [[float(number) for number in range(300)]] * 20
    masked = [{**entry, "id": n, "segmentation": polygons} for n in range(50) for entry in ANNOTATIONS[:1]]
    data = json.dumps(document(annotations=masked)).encode()
    tracemalloc.start()
    coco = read_coco(io.BytesIO(data), "x.json")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(len(record.boxes) for record in coco.annotations(str)) == 50
    assert held < len(data) / 20


def test_a_file_takes_memory_of_its_own_size_and_its_bytes_are_gone_while_it_is_parsed(tmp_path):
    place = tmp_path / "x.json"
    place.write_bytes(json.dumps(document(info="x" * 10_000_000)).encode())
    with place.open("rb") as stream:
        tracemalloc.start()
        read_coco(stream, "x.json")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2.5 * place.stat().st_size


@pytest.mark.parametrize(
    ("path", "folders", "split"),
    [
        ("annotations/instances_train2017.json", ("train2017", "images/train2017", "images", ""), "train"),
        (
            "coco/annotations/instances_val2017.json",
            ("coco/val2017", "coco/images/val2017", "coco/images", "coco"),
            "val",
        ),
        ("annotations/instances_default.json", ("default", "images/default", "images", ""), None),
        ("valid/_annotations.coco.json", ("valid",), "valid"),
        ("_annotations.coco.json", ("",), None),
    ],
)
def test_coco_files_are_found_by_name_with_the_places_of_their_images(path, folders, split):
    (found,) = find_coco_files([path, "annotations/captions_train2017.json", "other.json"])
    assert (found.path, found.image_folders, found.split) == (path, folders, split)


@pytest.mark.parametrize(
    ("path", "folders", "split"),
    [
        ("annotations/instances_val.json", ("val", "images/val", "images", "", "annotations"), "val"),
        ("train/_annotations.coco.json", ("train", ""), "train"),
        ("marks/mine.json", ("", "marks"), None),
        (None, ("val2017", "images/val2017", "images", ""), "val"),
    ],
)
def test_a_coco_file_that_is_named_means_what_it_does_where_it_is_found(path, folders, split):
    found = named_coco_file(f"/source/{path}" if path else "/elsewhere/instances_val2017.json", path)
    assert (found.image_folders, found.split) == (folders, split)


@pytest.mark.parametrize(("written", "named"), [("000000000139", 139), (7, "cat.jpg"), ("a", "b")])
def test_annotations_of_which_none_names_an_image_are_refused(written, named):
    images = [{"id": written, "file_name": "cat.jpg", "width": 9, "height": 9}]
    box = {"id": 1, "image_id": named, "category_id": CATEGORIES[0]["id"], "bbox": [1, 1, 2, 2]}
    with pytest.raises(AnnotationFileError, match="no annotation names an image of the file"):
        read(document(images, [box]))
    assert [len(one.boxes) for one in read(document(images, []))] == [0]
