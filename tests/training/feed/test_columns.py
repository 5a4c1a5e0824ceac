"""Columns as they come out of a feed: the defaults on tables that lakelens writes, and what stands for null."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from feed_tables import append, encoded, image_rows

from lakelens import DeltaFeed, ImageTable, decode_images, make_delta_converter
from lakelens.errors import InvalidArgumentError, MissingDependencyError
from lakelens.etl.model import schema
from lakelens.training.feed.adapters.fields import torch_columns

SHOWN = ["path", "image", "format", "height", "width", "label", "label_name", "split"]


def coco(source: Path) -> None:
    """Six images, the last of which has no boxes and so no class."""
    source.mkdir()
    for number in range(6):
        (source / f"{number}.jpg").write_bytes(encoded(number))
    boxes = [{"id": n, "image_id": n, "category_id": 1 + n % 2, "bbox": [1, 1, 4, 5]} for n in range(5)]
    described = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "height": 12, "width": 16} for n in range(6)],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": boxes,
    }
    (source / "_annotations.coco.json").write_text(json.dumps(described), encoding="utf-8")


@pytest.mark.spark
def test_default_columns_of_an_image_table_come_in_every_form(spark, tmp_path):
    coco(tmp_path / "source")
    table = ImageTable(spark, tmp_path / "t")
    assert table.ingest(tmp_path / "source", "coco", splits={"train": 1.0}).stored == 6
    feed, converter = DeltaFeed(table.location), make_delta_converter(table, version=0)
    (columns, _) = next(feed.as_column_numpy(6, 0, 1))
    assert list(columns) == [*SHOWN[:-1], "annotations", "split"]
    with pytest.warns(UserWarning, match="left out: annotations"), feed.petastorm_reader() as reader:
        item = next(reader)
    assert list(item._fields) == SHOWN
    assert sorted(item.path) == sorted(columns["path"])
    with pytest.warns(UserWarning, match="left out"), converter.make_tf_dataset(num_epochs=1) as dataset:
        (batch,) = list(dataset)
    assert sorted(batch.label.numpy()) == sorted(columns["label"]) == sorted(item.label)
    with pytest.warns(UserWarning, match="left out: path, image, format, label_name, annotations, split; .*decode_"):
        assert torch_columns(feed.plan, None) == ["height", "width", "label"]
    with pytest.warns(UserWarning, match="left out"):
        assert torch_columns(feed.plan, decode_images(8, 8)) == ["image", "height", "width", "label"]
    with pytest.warns(UserWarning, match="left out"), pytest.raises(MissingDependencyError, match="torch"):
        converter.make_torch_dataloader()


PREDICTIONS = {
    "path": ["file:/a.jpg", "file:/b.jpg"],
    "content_hash": pa.array(["aa", None], pa.string()),
    "label": pa.array([1, None], pa.int32()),
    "label_name": pa.array(["cat", None], pa.string()),
    "split": pa.array([None, None], pa.string()),
    "prediction": pa.array([1, None], pa.int32()),
    "predicted_name": pa.array(["cat", None], pa.string()),
    "probability": pa.array([0.75, None], pa.float32()),
    "probabilities": pa.array([[0.25, 0.75], None], pa.list_(pa.float32())),
    "error": pa.array([None, "not_an_image"], pa.string()),
    "model_uri": ["runs:/a"] * 2,
    "checkpoint_digest": ["dd"] * 2,
    "table": ["/tables/photos"] * 2,
    "version": pa.array([0, 0], pa.int64()),
    "scored_at": pa.array([0, 0], pa.timestamp("us", "UTC")),
    "batch_id": ["b"] * 2,
}
QUARANTINE = dict.fromkeys(schema.QUARANTINE.names) | {"path": "file:/a.jpg", "reason": "not_an_image"}


@pytest.mark.tensorflow
def test_default_columns_of_a_predictions_table_have_something_for_each_null(tmp_path):
    write_deltalake(str(tmp_path / "predictions"), pa.table(PREDICTIONS))
    converter = make_delta_converter(tmp_path / "predictions")
    with (
        pytest.warns(UserWarning, match="left out: probabilities"),
        converter.make_tf_dataset(num_epochs=1, shuffle_row_groups=False) as dataset,
    ):
        (batch,) = list(dataset)
    assert list(batch._fields) == [name for name in PREDICTIONS if name != "probabilities"]
    assert batch.error.numpy().tolist() == [b"", b"not_an_image"]
    assert batch.prediction.numpy().tolist() == batch.label.numpy().tolist() == [1, -1]
    assert batch.predicted_name.numpy().tolist() == batch.label_name.numpy().tolist() == [b"cat", b""]
    assert (batch.content_hash.numpy().tolist(), batch.split.numpy().tolist()) == ([b"aa", b""], [b"", b""])
    assert np.isnan(batch.probability.numpy()).tolist() == [False, True]


@pytest.mark.unit
def test_default_columns_of_a_quarantine_have_something_for_each_null(tmp_path):
    write_deltalake(str(tmp_path / "bad"), pa.Table.from_pylist([QUARANTINE], schema.QUARANTINE))
    columns, _ = next(DeltaFeed(tmp_path / "bad", image_column=None, label_column=None).as_column_numpy(1))
    found = {name: values.tolist() for name, values in columns.items()}
    assert found == {"path": ["file:/a.jpg"], "reason": ["not_an_image"], "error": [""], "label_name": [""]}


@pytest.mark.unit
def test_default_columns_of_an_image_table_are_without_what_only_ingest_and_inference_read(tmp_path):
    row = dict.fromkeys(schema.IMAGE_TABLE.names) | {
        "path": "file:/a.jpg",
        "image": b"abc",
        "format": "jpeg",
        "height": 3,
        "width": 4,
        "split": "train",
        "annotations": [],
        "source": {"width": 8, "height": 6, "orientation": 1, "resize": "fit"},
    }
    write_deltalake(str(tmp_path / "images"), pa.Table.from_pylist([row], schema.IMAGE_TABLE))
    columns, _ = next(DeltaFeed(tmp_path / "images").as_column_numpy(1))
    shared = {"path", "image", "format", "height", "width", "label", "label_name", "split"}
    assert set(columns) - {"annotations"} == shared


@pytest.mark.unit
def test_arrays_of_text_and_bytes_keep_their_zeros_and_their_nulls_are_refused(tmp_path):
    rows = {
        "letters": pa.array([["a\0", "b"], ["", "\0"]]),
        "data": pa.array([[b"\x01\0"], [b"\0\0"]], pa.list_(pa.binary())),
        "text": pa.array(["a\0\0", "b"]),
        "flags": pa.array([[True], [None]]),
        "names": pa.array([["a"], [None]]),
        "missing": pa.array([[1.5], None]),
    }
    write_deltalake(str(tmp_path), pa.table(rows))
    feed = DeltaFeed(tmp_path, image_column=None, label_column=None, shuffle=False)
    with feed.petastorm_reader(["letters", "data", "text"]) as reader:
        item = next(reader)
    for name in item._fields:
        assert getattr(item, name).tolist() == rows[name].to_pylist()
    for name in ("flags", "names", "missing"):
        with feed.petastorm_reader([name]) as reader, pytest.raises(InvalidArgumentError, match=f"{name!r} of .* null"):
            next(reader)


@pytest.mark.unit
def test_one_long_text_costs_its_own_length_only(tmp_path):
    write_deltalake(str(tmp_path), pa.table({"text": ["a"] * 999 + ["b" * 500_000]}))
    feed = DeltaFeed(tmp_path, image_column=None, label_column=None, shuffle=False)
    with feed.petastorm_reader() as reader:
        text = next(reader).text
    assert text.nbytes < 100_000
    assert len(text[999]) == 500_000


@pytest.mark.unit
@pytest.mark.parametrize(
    "fill",
    [
        0,
        np.datetime64(0, "us"),
        datetime(1970, 1, 1),
        datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
        date(1970, 1, 1),
    ],
)
def test_what_stands_for_a_missing_time_may_be_a_number_or_a_time(tmp_path, fill):
    append(tmp_path / "t", image_rows(range(1)).append_column("at", pa.array([None], pa.timestamp("us", "UTC"))))
    columns, _ = next(DeltaFeed(tmp_path / "t").as_column_numpy(1, columns=["at"], fill={"at": fill}))
    assert columns["at"].tolist() == [datetime(1970, 1, 1)]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("fill", "words"),
    [
        ({"label": "soon"}, "label='soon' does not fit the column's type integer"),
        ({"label": True}, "label=True does not fit the column's type integer"),
        ({"label": 2**40}, "does not fit the column's type integer"),
        ({"path": 3}, "path=3 does not fit the column's type string"),
        ({"image": "no bytes"}, "does not fit the column's type binary"),
        ({"at": "soon"}, "at='soon' does not fit the column's type timestamp"),
        ({"lable": 3}, "no column 'lable'"),
    ],
)
def test_what_stands_for_null_is_refused_before_anything_is_read_if_it_does_not_fit(
    tmp_path, fill: dict[str, Any], words
):
    append(tmp_path / "t", image_rows(range(1)).append_column("at", pa.array([None], pa.timestamp("us", "UTC"))))
    feed = DeltaFeed(tmp_path / "t")
    for give in (feed.as_column_numpy, lambda _, **options: feed.petastorm_reader(**options)):
        with pytest.raises(InvalidArgumentError, match=words):
            give(1, fill=fill)
