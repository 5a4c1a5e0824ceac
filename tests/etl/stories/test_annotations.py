"""Rules of the record that every annotation format is read into."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import reasons

from lakelens.errors import InvalidArgumentError
from lakelens.etl.annotations import boxes as bx
from lakelens.etl.annotations import record as an
from lakelens.etl.annotations.boxes import Box, Problem
from lakelens.etl.annotations.record import (
    Annotation,
    annotation_of,
    limit_classes,
    merge_annotations,
    with_split,
)
from lakelens.etl.annotations.references import relative_reference, resolve_reference
from lakelens.etl.model.classes import names_now

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("split", "texts"),
    [
        ("train", ["train", "Training"]),
        ("validation", ["VAL", "valid", "dev"]),
        ("test", ["test "]),
        ("fold_3", ["fold_3"]),
        (None, ["", None, "  "]),
    ],
)
def test_the_usual_names_of_a_split_mean_one_split(split, texts):
    for named in (with_split(Annotation("a"), text) for text in texts):
        assert (named.split, named.problems) == (split, ())


@pytest.mark.parametrize("text", ["../train", "a/b", "train=1", "Übung", ".", "x" * 101])
def test_a_split_that_can_be_no_folder_quarantines_the_image(text):
    named = with_split(Annotation("a"), text)
    assert (named.split, reasons(named), named.quarantine.reason) == (None, [an.SPLIT_UNFIT], an.SPLIT_UNFIT)


def test_unknown_classes_cost_a_box_its_place_and_an_image_its_own():
    annotation = Annotation("a", label_name="cat", boxes=(Box("cat", 0, 0, 1, 1), Box("dgo", 0, 0, 1, 1)))
    limited = limit_classes(annotation, {"cat", "dog"})
    assert [box.label_name for box in limited.boxes] == ["cat"]
    assert limited.problems == (Problem(an.BOX_CLASS_UNWANTED, "dgo"),)
    assert limit_classes(replace(annotation, label_name=None), {"owl"}).boxes is None
    assert limited.quarantine is None
    assert limit_classes(annotation, {"dog"}).quarantine == Problem(an.CLASS_UNKNOWN, "cat")


CAT, DOG = Box("cat", 0, 0, 1, 1), Box("dog", 1, 1, 2, 2)
ONE, SAME, OTHER = (an.ContentStamp(digest, 3, number) for number, digest in enumerate(("one", "one", "two")))


@pytest.mark.parametrize(
    ("rows", "merged", "problems"),
    [
        ([{"boxes": (CAT,), "split": "train"}, {"boxes": (DOG,)}], {"boxes": (CAT, DOG), "split": "train"}, []),
        ([{"label_name": "cat"}] * 3, {"label_name": "cat"}, [an.ANNOTATION_REPEATED]),
        ([{"stamp": ONE}, {"stamp": SAME}], {"stamp": SAME}, [an.ANNOTATION_REPEATED]),
        ([{"stamp": ONE}, {"stamp": OTHER}], None, [an.ANNOTATION_REPEATED, an.CONTENT_CONFLICT]),
        ([{"label_name": "cat"}, {"label_name": "dog"}], None, [an.LABEL_CONFLICT]),
        ([{"split": "train"}, {"split": "test"}], None, [an.SPLIT_CONFLICT]),
        ([{"size": (1, 2)}, {"size": (2, 2)}], None, [bx.SIZE_MISMATCH]),
    ],
)
def test_rows_of_one_path_become_one_annotation_unless_they_contradict(rows, merged, problems):
    other = Annotation("b", label_name="cat")
    first, second = merge_annotations([*(Annotation("a", **row) for row in rows), other])
    assert reasons(first) == problems
    assert (first.quarantine is None, second) == (merged is not None, other)
    assert merged is None or replace(first, problems=()) == Annotation("a", **merged)


def test_rows_of_one_path_with_more_boxes_than_a_row_may_hold_quarantine_the_image():
    many = tuple(Box("a", 0, 0, 1 + i, 1) for i in range(an.MAX_BOXES_PER_IMAGE + 1))
    (merged,) = merge_annotations(Annotation("a", boxes=(box,)) for box in (*many, *many))
    assert merged.quarantine.reason == an.TOO_MANY_BOXES


texts = st.none() | st.text(min_size=1, max_size=5)
boxes = st.builds(Box, st.text(min_size=1), *[st.floats(allow_nan=False)] * 4, difficult=st.booleans())
records = st.builds(
    Annotation,
    path=st.text(min_size=1),
    label_name=texts,
    boxes=st.lists(boxes, max_size=3).map(tuple),
    split=texts,
    size=st.none() | st.tuples(st.integers(1, 10_000), st.integers(1, 10_000)),
    problems=st.lists(st.builds(Problem, st.sampled_from(sorted(an.REASONS)), st.text()), max_size=3).map(tuple),
)


@given(st.lists(records, max_size=5))
def test_a_record_survives_its_way_through_a_row_of_arrow(given_records):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(an, "_BATCH_BOXES", 3)
        batches = list(an.annotation_batches(given_records))
    assert [annotation_of(row) for batch in batches for row in batch.to_pylist()] == given_records


def test_a_row_that_a_join_left_empty_is_an_annotation_without_anything():
    assert annotation_of({"path": "a", "boxes": None, "problems": None, "split": None}) == Annotation("a")


NAMES = [("cat", "cat"), (" cat ", "cat"), (7, "7"), (7.0, "7"), (0, "0"), ("猫", "猫"), ("<script>", "<script>")]
BLANKS = [("a\nb", "a b"), ("\u00a0stop\u00a0 \tsign\u3000", "stop sign")]
PERSIAN = "\u0645\u06cc\u200c\u0631\u0648"
JOINED = "👩\u200d🚒"
COMPOSED = [("cafe\u0301", "caf\u00e9"), ("\u1100\u1161", "\uac00"), (PERSIAN, PERSIAN), (JOINED, JOINED)]
NO_NAMES = ["", "  ", "\u00a0", None, True, [], {}]


@pytest.mark.parametrize(
    ("value", "name"),
    [*NAMES, *BLANKS, *COMPOSED, *((value, None) for value in NO_NAMES)],
)
def test_a_class_name_is_composed_and_has_single_blanks(value, name):
    assert an.clean_name(value) == name


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\0b", r"'a\\x00b' has a char"),
        ("a\x1cb", r"'a\\x1cb' has a char"),  # which str.split takes for a blank
        ("a\x85b", r"'a\\x85b' has a char"),
        ("ca\u200bt", r"'ca\\u200bt'"),
        ("so\u00adft", r"'so\\xadft'"),
        ("x" * 501, "501 char"),
    ],
)
def test_a_class_name_that_nobody_can_read_is_refused_and_shown_escaped(value, shown):
    with pytest.raises(InvalidArgumentError, match=shown):
        an.clean_name(value)


def test_classes_of_an_older_table_keep_their_spelling():
    old, new = "cafe\u0301", "caf\u00e9"
    assert names_now([old, "cat"], {}) == {new: old}
    assert names_now([old, new], {}) == {}
    assert names_now(["bar"], {old: "bar"}) == {old: "bar", new: "bar"}
    assert names_now(["ca\u200bt"], {"dog": "ca\u200bt"}) == {"dog": "ca\u200bt"}


NO_SIZES = [("0", "0"), (None, 3), ("a", "1"), (float("nan"), 1), (float("inf"), 1), (-5, 5), (10**30, 5)]


@pytest.mark.parametrize(
    ("given", "size"),
    [(("640", "480"), (640, 480)), ((640.0, 480), (640, 480)), *((given, None) for given in NO_SIZES)],
)
def test_a_declared_size_is_two_positive_numbers_or_unknown(given, size):
    assert an.declared_size(*given) == size


@pytest.mark.parametrize(
    ("reference", "root", "path"),
    [
        ("cat/1.jpg", "/data", "file:///data/cat/1.jpg"),
        ("./cat//1.jpg", "/data/", "file:///data/cat/1.jpg"),
        ("../images/1.jpg", "/data/labels", "file:///data/images/1.jpg"),
        ("cat\\1.jpg", "/data", "file:///data/cat/1.jpg"),
        ("a b%20ü.jpg", "/data", "file:///data/a%20b%2520%C3%BC.jpg"),
        ("/else/1.jpg", "/data", "file:///else/1.jpg"),
        ("file:///else/a%20b.jpg", "/data", "file:///else/a%20b.jpg"),
        ("file:/else/a b.jpg", "/data", "file:///else/a%20b.jpg"),
        ("s3a://bucket/a b.jpg", "/data", "s3a://bucket/a b.jpg"),
        ("cat/a b.jpg", "s3a://bucket/data", "s3a://bucket/data/cat/a b.jpg"),
        ("../1.jpg", "s3a://bucket/data", "s3a://bucket/1.jpg"),
        ("../../../1.jpg", "s3a://bucket/data", "s3a://bucket/1.jpg"),
        ("/mnt/1.jpg", "dbfs:/data", "dbfs:/mnt/1.jpg"),
        ("1.jpg", "dbfs:/data", "dbfs:/data/1.jpg"),
        ("1#2?.jpg", "s3a://bucket/data#1", "s3a://bucket/data#1/1#2?.jpg"),
        ("1.jpg", "file:///a%20b", "file:///a%20b/1.jpg"),
        ("caf\udce9.jpg", "/data", "file:///data/caf%E9.jpg"),  # a name of a file that is not UTF-8
    ],
)
def test_a_reference_becomes_the_path_that_a_listing_has(reference, root, path):
    assert resolve_reference(reference, root) == path


@pytest.mark.parametrize(
    ("reference", "root", "path"),
    [
        ("{}/data/photos/cat/1.jpg", "{}/labels", "{}/disk/photos/cat/1.jpg"),  # a link above the images
        ("file://{}/data/photos/cat/1.jpg", "{}/labels", "{}/disk/photos/cat/1.jpg"),
        ("file:{}/data/photos/cat/1.jpg", "s3a://bucket/labels", "{}/disk/photos/cat/1.jpg"),
        ("{}/data/photos/cat/1.jpg", "{}/disk/photos", "{}/disk/photos/cat/1.jpg"),
        ("{}/data/photos/dog/1.jpg", "{}/disk/photos", "{}/disk/photos/dog/1.jpg"),  # one below the source's folder
        ("{}/disk/photos/dog/1.jpg", "{}/disk/photos", "{}/disk/photos/dog/1.jpg"),
        ("dog/1.jpg", "{}/disk/photos", "{}/disk/photos/dog/1.jpg"),
        ("{}/data/photos/dog/1.jpg", "{}/labels", "{}/elsewhere/1.jpg"),
        ("{}/data/photos/cat/link.jpg", "/", "{}/disk/photos/cat/link.jpg"),  # a file's own name stays
        ("{}/data/nothing/1.jpg", "/", "{}/disk/nothing/1.jpg"),
    ],
)
def test_an_absolute_reference_has_the_spelling_of_its_folder(tmp_path, reference, root, path):
    (tmp_path / "disk" / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "photos" / "dog").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "disk" / "photos" / "cat" / "link.jpg").symlink_to(tmp_path / "elsewhere" / "1.jpg")
    assert resolve_reference(reference.format(tmp_path), root.format(tmp_path)) == f"file://{path.format(tmp_path)}"


@pytest.mark.parametrize("reference", ["", "  ", None, 7, "C:\\1.jpg", "c:/a.jpg", "\\\\host\\a.jpg", "a\0b", "a\nb"])
def test_a_reference_that_means_nothing_here_is_refused(reference):
    with pytest.raises(InvalidArgumentError):
        resolve_reference(reference, "/data")


@pytest.mark.parametrize("root", ["/data", "s3a://bucket/data"])
@pytest.mark.parametrize("reference", ["\ud83d.jpg", "file:///\ud83d.jpg", "s3a://bucket/\ud83d.jpg"])
def test_a_reference_with_half_a_surrogate_pair_is_refused_by_its_escape(reference, root):
    with pytest.raises(InvalidArgumentError, match=r"\\ud83d.*surrogate"):
        resolve_reference(reference, root)


def test_half_a_surrogate_pair_goes_through_arrow_as_its_escape():
    unfit = with_split(Annotation("/caf\udce9/m.jsonl#row=1"), "\ud83d")
    (batch,) = an.annotation_batches([unfit])
    (row,) = batch.to_pylist()
    assert row["path"] == r"/caf\udce9/m.jsonl#row=1"
    assert row["problems"] == [{"reason": an.SPLIT_UNFIT, "detail": r"\ud83d"}]


def test_a_listed_path_is_given_back_relative_to_its_source():
    assert relative_reference("file:///a%20b/c%25/1.jpg", "file:///a%20b") == "c%/1.jpg"
    assert relative_reference("s3a://b/data/x y/1.jpg", "s3a://b/data/") == "x y/1.jpg"
    assert relative_reference("s3a://b/database/1.jpg", "s3a://b/data") is None
