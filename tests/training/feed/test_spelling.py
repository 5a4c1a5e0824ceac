"""Data files that spell columns in other cases than their table does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from feed_tables import HEIGHT, WIDTH, changed, image_rows

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


@pytest.mark.parametrize(("kept", "found"), [({"label": [1, 6]}, [1, 6]), ({"path": "7"}, [7]), ({"label": None}, [])])
def test_filters_keep_the_rows_of_files_in_another_case(photos, kept, found):
    kept = {name: "path of 7" if value == "7" else value for name, value in kept.items()}
    rows = changed(image_rows(range(7, 8)), path=["path of 7"])
    add_file(photos, rows, path="PATH", label="laBel")
    if not found:
        with pytest.raises(EmptyFeedError, match="holds no rows with label=None"):
            DeltaFeed(photos, filters=kept)
        return
    _, labels, _ = next(DeltaFeed(photos, filters=kept, shuffle=False).as_numpy(9))
    assert sorted(labels.tolist()) == found


@pytest.mark.parametrize("value", ["1", "6"])
def test_rows_are_found_by_a_value_in_files_of_either_case(photos, value):
    paths = [row["path"] for row in rows_with(open_snapshot(Table.of(photos)), "label", int(value), ["path"])]  # type: ignore[arg-type]
    assert paths == image_rows([int(value)]).column("path").to_pylist()


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
