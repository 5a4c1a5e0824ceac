"""Data files that spell columns in other cases, or store other Arrow types, than their table does."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from feed_tables import HEIGHT, WIDTH, changed, image_rows, number_classes

from lakelens import DeltaFeed
from lakelens.errors import DataFileError, EmptyFeedError, InvalidArgumentError
from lakelens.inference.scoring.images import FILE, ImageFiles
from lakelens.inference.trace import rows_with
from lakelens.log.snapshot import open_snapshot
from lakelens.table import Table
from lakelens.training.feed.image_plan import size_of_all_images

pytestmark = pytest.mark.unit


def add_file(location: Path, rows: pa.Table, **names: str) -> Path:
    """Commits a file whose columns are renamed, as a conversion of it would."""
    version = len(list((location / "_delta_log").glob("*.json")))
    file = location / f"converted-{version}.parquet"
    renamed = rows.rename_columns([names.get(name, name) for name in rows.column_names])
    pq.write_table(renamed, file, row_group_size=2)
    entry = {"path": file.name, "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 0}
    commit = json.dumps({"add": {**entry, "dataChange": True}})
    (location / "_delta_log" / f"{version:020d}.json").write_text(commit)
    return file


@pytest.fixture
def photos(tmp_path) -> Path:
    write_deltalake(str(tmp_path / "t"), image_rows(range(4)))
    names = {"image": "IMAGE", "label": "Label", "format": "forMat", "height": "Height", "width": "WIDTH"}
    add_file(tmp_path / "t", image_rows(range(4, 8)), path="Path", **names)
    return tmp_path / "t"


def test_images_labels_and_sizes_of_files_in_another_case_are_fed(photos):
    feed = DeltaFeed(photos, shuffle=False)
    images, labels, weights = next(feed.as_numpy(8))
    assert sorted(labels.tolist()) == list(range(8))
    assert len(np.unique(images.reshape(8, -1), axis=0)) == weights.sum() == 8
    assert size_of_all_images([feed.plan]) == (HEIGHT, WIDTH)
    add_file(photos, changed(image_rows(range(8, 9)), width=pa.array([20], pa.int32())), width="Width")
    with pytest.raises(InvalidArgumentError, match=r"converted-2\.parquet has an image of 12 x 20 pixels"):
        size_of_all_images([DeltaFeed(photos).plan])


def test_filters_keep_the_rows_of_files_in_another_case(photos):
    add_file(photos, changed(image_rows(range(7, 8)), path=["path of 7"]), path="PATH", label="laBel")
    for kept, found in (({"label": [1, 6]}, [1, 6]), ({"path": "path of 7"}, [7])):
        _, labels, _ = next(DeltaFeed(photos, filters=kept, shuffle=False).as_numpy(9))
        assert sorted(labels.tolist()) == found
    with pytest.raises(EmptyFeedError, match="holds no rows with label=None"):
        DeltaFeed(photos, filters={"label": None})


def test_rows_are_found_by_a_value_in_files_of_either_case(photos):
    for value in (1, 6):
        paths = [row["path"] for row in rows_with(open_snapshot(Table.of(photos)), "label", value, ["path"])]  # type: ignore[arg-type]
        assert paths == image_rows([value]).column("path").to_pylist()


def test_scoring_reads_images_and_keys_in_another_case(photos):
    (file,) = photos.glob("converted-*")
    wanted = image_rows([6, 4])
    rows = pa.RecordBatch.from_pydict({"path": wanted.column("path").to_pylist(), FILE: [file.as_uri()] * 2})
    given = pa.Table.from_batches(ImageFiles("image", {"path": "path"}, {}, 1 << 20).with_images([rows]))
    images = dict(zip(*(given.column(name).to_pylist() for name in ("path", "image")), strict=True))
    assert images == dict(zip(*(wanted.column(name).to_pylist() for name in ("path", "image")), strict=True))


@pytest.mark.parametrize("names", [("label", "Label"), ("LABEL", "lAbEl")])
def test_two_spellings_in_one_file_are_refused_as_spark_refuses_them(photos, names):
    rows = image_rows(range(2))
    doubled = rows.append_column("second", rows.column("label"))
    add_file(photos, doubled, label=names[0], second=names[1])
    feed = DeltaFeed(photos, shuffle=False)
    with pytest.raises(DataFileError, match=f"converted-2.parquet has the names '{names[0]}' and '{names[1]}'"):
        list(feed.as_column_numpy(8, columns=["label"]))
    assert sum(len(weights) for _, weights in feed.as_column_numpy(10, columns=["path"])) == 10


def test_fields_of_structs_are_matched_in_either_case_and_two_spellings_are_refused(tmp_path):
    write_deltalake(str(tmp_path), pa.table({"box": [{"Left": 1, "Top": 2}]}))
    add_file(tmp_path, pa.table({"box": [{"LEFT": 3, "top": 4}]}), box="BOX")
    add_file(tmp_path, pa.table({"box": [{"LEFT": 5}]}), box="BOX")
    columns, _ = next(DeltaFeed(tmp_path, image_column=None, label_column=None, shuffle=False).as_column_numpy(3))
    assert {box["Left"]: box["Top"] for box in columns["box"]} == {1: 2, 3: 4, 5: None}
    add_file(tmp_path, pa.table({"box": [{"left": 5, "Left": 6, "Top": 7}]}))
    with pytest.raises(DataFileError, match="has the names 'left' and 'Left' for column 'Left'"):
        list(DeltaFeed(tmp_path, image_column=None, label_column=None, shuffle=False).as_column_numpy(3))


def test_files_whose_writers_chose_other_arrow_types_are_read_as_the_declared_types(tmp_path):
    corners = [(name, pa.float64()) for name in ("xmin", "ymin", "xmax", "ymax")]
    box = {"label": 1, "xmin": 1.0, "ymin": 2.0, "xmax": 8.0, "ymax": 6.0}
    names = pa.array(["cat", "dog"])
    written = [
        (names, [("label", pa.int32()), *corners]),
        (names.cast(pa.large_string()), [pa.field("label", pa.int32(), nullable=False), *corners]),
        (names.dictionary_encode(), [*corners, ("label", pa.int32())]),
    ]
    for first, (labels, fields) in zip((0, 2, 4), written, strict=True):
        rows = image_rows(range(first, first + 2)).drop(["label"]).append_column("label", labels)
        rows = rows.append_column("annotations", pa.array([[box], []], pa.list_(pa.struct(fields))))
        if first == 0:
            write_deltalake(str(tmp_path), rows)
        else:
            add_file(tmp_path, rows)
    number_classes(tmp_path, {"cat": 0, "dog": 1})
    feed = DeltaFeed(tmp_path, shuffle=False)
    assert next(feed.as_numpy(6))[1].tolist() == [0, 1] * 3
    assert next(feed.as_numpy(6, box_classes=2))[1][:, 0].tolist() == [[1, 2, 8, 6, 1, 0], [0, 0, 0, 0, -1, 0]] * 3


def test_times_of_a_file_with_a_zone_of_its_own_come_in_utc(tmp_path):
    moment = pa.array([datetime(2024, 7, 1, 12, tzinfo=timezone.utc)], pa.timestamp("us", "UTC"))
    write_deltalake(str(tmp_path), pa.table({"at": moment}))
    add_file(tmp_path, pa.table({"at": moment.cast(pa.timestamp("us", "America/New_York"))}))
    columns, _ = next(DeltaFeed(tmp_path, image_column=None, label_column=None).as_column_numpy(2))
    assert columns["at"].tolist() == [datetime(2024, 7, 1, 12)] * 2
