"""Which columns a feed takes for images and for classes, told when it is built."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from feed_tables import image_rows, write_layout

from lakelens import DeltaFeed, decode_images, make_delta_converter
from lakelens.errors import BadRowError, NotAnImageTableError

pytestmark = pytest.mark.unit

# What Spark's image source gives.
PIXELS = pa.struct([("origin", pa.string()), ("height", pa.int32()), ("width", pa.int32()), ("data", pa.binary())])


def named(location: Path, names: list[str | None], **numbers: int) -> Path:
    """A table whose label column holds names, and whose property numbers some of them."""
    rows = image_rows(range(len(names))).set_column(5, "label", pa.array(names, pa.string()))
    write_deltalake(str(location), rows)
    if numbers:
        commit = location / "_delta_log" / f"{0:020d}.json"
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"]["lakelens.labels"] = json.dumps(numbers)
        commit.write_text("\n".join(map(json.dumps, actions)) + "\n")
    return location


@pytest.mark.parametrize(
    ("images", "told"),
    [
        (
            pa.array([("file:/a.jpg", 1, 1, b"abc")], PIXELS),
            r"'image' is struct<origin:string,.*data:binary>.*Spark's image source: store the files",
        ),
        (pa.array([[1, 2]]), r"'image' is array<long>, and images are binary. Name the binary column .* image_column"),
        (pa.array([1]), r"'image' is long, and images are binary"),
        (pa.array(["file:/a.jpg"]), r"'image' is string.*store the files that they name: ImageTable\(.*column path"),
    ],
)
def test_a_column_that_holds_no_images_is_refused_by_its_type_when_the_feed_is_built(tmp_path, images, told):
    write_deltalake(str(tmp_path), pa.table({"image": images, "label": pa.array([0], pa.int32())}))
    with pytest.raises(NotAnImageTableError, match=told):
        DeltaFeed(tmp_path)
    with pytest.raises(NotAnImageTableError, match=told):
        make_delta_converter(tmp_path).feed.petastorm_reader(["image"], transform_spec=decode_images(8, 8))


def test_names_of_classes_are_fed_as_the_numbers_that_the_table_gives_them(tmp_path):
    feed = DeltaFeed(named(tmp_path, ["dog", "cat", "dog"], cat=0, dog=2), shuffle=False)
    assert feed.class_names == ["cat", "", "dog"]
    (_, labels, _) = next(feed.as_numpy(3))
    assert labels.tolist() == [2, 0, 2]


@pytest.mark.parametrize(("name", "told"), [("cow", r"row 1 .* class 'cow' in column 'label'"), (None, "no label")])
def test_a_name_without_a_number_is_a_bad_row(tmp_path, name, told):
    feed = DeltaFeed(named(tmp_path, ["cat", name], cat=0), shuffle=False)
    with pytest.raises(BadRowError, match=told):
        list(feed.as_numpy(2))
    (_, labels, weights) = next(feed.as_numpy(2, bad_rows="skip", replicas=2))
    assert (labels.tolist(), weights.tolist()) == ([0, 0], [1, 0])


def test_names_that_the_table_does_not_number_are_refused_with_how_to_number_them(tmp_path):
    table = named(tmp_path, ["cat", "dog"])
    with pytest.raises(NotAnImageTableError, match=r"'label' is string.*SET TBLPROPERTIES \('lakelens.labels' = '\{"):
        DeltaFeed(table)


def test_numbers_stay_labels_where_the_table_names_them_too(tmp_path):
    feed = DeltaFeed(write_layout(tmp_path / "t", [2]))
    assert feed.plan.columns.class_numbers is None
    assert feed.class_names is None
