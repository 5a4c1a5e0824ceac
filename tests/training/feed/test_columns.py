"""Columns of a feed: the defaults on tables that lakelens writes, types, and what stands for null."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from feed_tables import HEIGHT, WIDTH, append, changed, encoded, image_rows, number_classes

from lakelens import DeltaFeed, decode_images, make_delta_converter
from lakelens.errors import InvalidArgumentError, MissingDependencyError, NotAnImageTableError
from lakelens.etl.model import schema
from lakelens.training.feed.adapters.fields import torch_columns

pytestmark = pytest.mark.unit

SHOWN = ["path", "image", "format", "height", "width", "label", "label_name", "split"]


def image_table(location: Path) -> Path:
    """Two rows as an ingest writes them, one of which has no boxes and so no class."""
    known = {"image": encoded(0), "format": "jpeg", "height": HEIGHT, "width": WIDTH, "split": "train"}
    known["source"] = {"width": 8, "height": 6, "orientation": 1, "resize": "fit"}
    box = {"label": 1, "label_name": "dog", "xmin": 1.0, "ymin": 1.0, "xmax": 4.0, "ymax": 5.0}
    rows = [{"path": "a", "label": 1, "label_name": "dog", "annotations": [box]}, {"path": "b", "annotations": []}]
    rows = [dict.fromkeys(schema.IMAGE_TABLE.names) | known | row for row in rows]
    write_deltalake(str(location), pa.Table.from_pylist(rows, schema.IMAGE_TABLE))
    return location


def test_default_columns_of_an_image_table_come_in_every_form(tmp_path):
    feed = DeltaFeed(image_table(tmp_path), shuffle=False)
    converter = make_delta_converter(feed)
    (columns, _) = next(feed.as_column_numpy(2))
    assert list(columns) == [*SHOWN[:-1], "annotations", "split"]
    assert (columns["label"].tolist(), columns["label_name"].tolist()) == ([1, -1], ["dog", ""])
    with pytest.warns(UserWarning, match="left out: annotations"), feed.petastorm_reader() as reader:
        item = next(reader)
    assert (list(item._fields), item.path.tolist(), item.label.tolist()) == (SHOWN, ["a", "b"], [1, -1])
    with pytest.warns(UserWarning, match="left out: path, image, format, label_name, annotations, split; .*decode_"):
        assert torch_columns(feed.plan, None) == ["height", "width", "label"]
    with pytest.warns(UserWarning, match="left out"):
        assert torch_columns(feed.plan, decode_images(8, 8)) == ["image", "height", "width", "label"]
    with pytest.warns(UserWarning, match="left out"), pytest.raises(MissingDependencyError, match="torch"):
        converter.make_torch_dataloader()


def test_default_columns_of_a_predictions_table_have_something_for_each_null(tmp_path):
    scored = {"path": "a", "content_hash": "aa", "label": 1, "label_name": "cat", "split": "test", "prediction": 1}
    scored |= {"predicted_name": "cat", "probability": 0.75, "probabilities": [0.25, 0.75], "error": None}
    known = {"model_uri": "runs:/a", "checkpoint_digest": "dd", "scored_at": datetime(2026, 1, 1, tzinfo=timezone.utc)}
    rows = [scored | known, {"path": "b", "error": "not_an_image"} | known]
    write_deltalake(str(tmp_path), pa.Table.from_pylist(rows))
    feed = DeltaFeed(tmp_path, image_column=None, label_column=None, shuffle=False)
    with pytest.warns(UserWarning, match="left out: probabilities"), feed.petastorm_reader() as reader:
        batch = next(reader)
    assert list(batch._fields) == [name for name in scored | known if name != "probabilities"]
    assert batch.error.tolist() == ["", "not_an_image"]
    assert batch.prediction.tolist() == batch.label.tolist() == [1, -1]
    assert batch.predicted_name.tolist() == batch.label_name.tolist() == ["cat", ""]
    assert (batch.content_hash.tolist(), batch.split.tolist()) == (["aa", ""], ["test", ""])
    assert np.isnan(batch.probability).tolist() == [False, True]


def test_default_columns_of_a_quarantine_have_something_for_each_null(tmp_path):
    row = {"path": "file:/a.jpg", "reason": "not_an_image"}
    write_deltalake(str(tmp_path), pa.Table.from_pylist([row], schema.QUARANTINE))
    columns, _ = next(DeltaFeed(tmp_path, image_column=None, label_column=None).as_column_numpy(1))
    found = {name: values.tolist() for name, values in columns.items()}
    assert found == {"path": ["file:/a.jpg"], "reason": ["not_an_image"], "error": [""], "label_name": [""]}


def test_arrays_of_text_and_bytes_keep_their_zeros(tmp_path):
    rows = {
        "letters": pa.array([["a\0", "b"], ["", "\0"]]),
        "data": pa.array([[b"\x01\0"], [b"\0\0"]], pa.list_(pa.binary())),
        "text": pa.array(["a\0\0", "b"]),
    }
    write_deltalake(str(tmp_path), pa.table(rows))
    feed = DeltaFeed(tmp_path, image_column=None, label_column=None, shuffle=False)
    with feed.petastorm_reader(list(rows)) as reader:
        item = next(reader)
    for name in item._fields:
        assert getattr(item, name).tolist() == rows[name].to_pylist()


def test_one_long_text_costs_its_own_length_only(tmp_path):
    write_deltalake(str(tmp_path), pa.table({"text": ["a"] * 999 + ["b" * 500_000]}))
    feed = DeltaFeed(tmp_path, image_column=None, label_column=None, shuffle=False)
    with feed.petastorm_reader() as reader:
        text = next(reader).text
    assert text.nbytes < 100_000
    assert len(text[999]) == 500_000


def test_what_stands_for_a_missing_time_may_be_a_number_or_a_time_and_has_to_fit_its_column(tmp_path):
    append(tmp_path / "t", changed(image_rows(range(1)), at=pa.array([None], pa.timestamp("us", "UTC"))))
    feed = DeltaFeed(tmp_path / "t")
    zoned = datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    for fill in (0, np.datetime64(0, "us"), datetime(1970, 1, 1), zoned, date(1970, 1, 1)):
        columns, _ = next(feed.as_column_numpy(1, columns=["at"], fill={"at": fill}))
        assert columns["at"].tolist() == [datetime(1970, 1, 1)]
    for fill, words in (
        ({"label": "soon"}, "label='soon' does not fit the column's type integer"),
        ({"label": True}, "label=True does not fit the column's type integer"),
        ({"label": 2**40}, "does not fit the column's type integer"),
        ({"path": 3}, "path=3 does not fit the column's type string"),
        ({"at": "soon"}, "at='soon' does not fit the column's type timestamp"),
        ({"lable": 3}, "no column 'lable'"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            feed.as_column_numpy(1, fill=fill)
        with pytest.raises(InvalidArgumentError, match=words):
            feed.petastorm_reader(fill=fill)


# --- columns of images and classes -----------------------------------------------------------------------------------

# What Spark's image source gives.
PIXELS = pa.struct([("origin", pa.string()), ("height", pa.int32()), ("width", pa.int32()), ("data", pa.binary())])


@pytest.mark.parametrize(
    ("images", "said"),
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
def test_a_column_that_holds_no_images_is_refused_by_its_type_when_the_feed_is_built(tmp_path, images, said):
    write_deltalake(str(tmp_path), pa.table({"image": images, "label": pa.array([0], pa.int32())}))
    with pytest.raises(NotAnImageTableError, match=said):
        DeltaFeed(tmp_path)
    with pytest.raises(NotAnImageTableError, match=said):
        make_delta_converter(tmp_path).feed.petastorm_reader(["image"], transform_spec=decode_images(8, 8))


def test_names_of_classes_are_fed_as_the_numbers_that_the_table_gives_them(tmp_path):
    write_deltalake(str(tmp_path), changed(image_rows(range(3)), label=["dog", "cat", "dog"]))
    with pytest.raises(NotAnImageTableError, match=r"'label' is string.*SET TBLPROPERTIES \('lakelens.labels' = '\{"):
        DeltaFeed(tmp_path)
    number_classes(tmp_path, {"cat": 0, "dog": 2})
    feed = DeltaFeed(tmp_path, shuffle=False)
    assert feed.class_names == ["cat", "", "dog"]
    assert next(feed.as_numpy(3))[1].tolist() == [2, 0, 2]
