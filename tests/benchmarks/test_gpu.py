"""The benchmark of GPUs: what it counts, and the table that it writes without Spark."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import gpu
from benchmarks.gpu_table import class_names, label_of, write_table
from benchmarks.photographs import photographs
from lakelens import DeltaFeed
from lakelens.etl.model.schema import IMAGE_TABLE

pytestmark = pytest.mark.unit


class Clock:
    """Time that passes when a batch or a step takes some."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_only_batches_after_the_warm_up_count_and_waiting_is_what_a_batch_takes():
    clock, begun, ended = Clock(), [], []

    def batches():
        for number in itertools.count():
            clock.now += 5.0 if number == 0 else 1.0
            yield [number] * 10, [0] * 10, [1.0] * 10

    def step(images, labels):
        clock.now += 3.0
        begun.append(images[0])
        return lambda: ended.append(images[0])

    speed = gpu.measure(batches, step, seconds=40.0, warm_steps=4, clock=clock)
    # Eleven steps of 3 s and the ten waits between them are 43 s, the first end after 40 s.
    assert begun == list(range(15))
    assert ended == begun
    assert speed.first_batch_s == 5.0
    assert (speed.seconds, speed.images_s, speed.wait) == (43.0, 110 / 43, 10 / 43)


def test_the_loader_meets_every_file_once_before_it_meets_one_again():
    drawn = list(itertools.islice(gpu.Endless(50), 100))
    assert sorted(drawn[:50]) == sorted(drawn[50:]) == list(range(50))
    assert drawn[:50] != drawn[50:]


def test_the_table_has_an_ingests_columns_and_the_files_own_bytes(tmp_path):
    made = photographs(tmp_path, 12, classes=4)
    files = write_table(made, tmp_path / "table", 8, 4)
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert set(rows[0]) == set(IMAGE_TABLE.names)
    assert {Path(row["path"]).name: row["image"] for row in rows if row["split"] == "train"} == {
        file.name: file.read_bytes() for file in files
    }
    feed = DeltaFeed(tmp_path / "table", split="train")
    assert feed.rows == 8
    ((images, labels, _),) = feed.as_numpy(8, image_size=32)
    assert images.shape == (8, 32, 32, 3)
    assert sorted(labels.tolist()) == sorted(label_of(file) for file in files)
    assert class_names(made)[label_of(files[1])] == files[1].parent.name


def test_the_table_at_a_side_stores_jpegs_of_that_side(tmp_path):
    made = photographs(tmp_path, 6, classes=2)
    write_table(made, tmp_path / "table", 4, 2, 48)
    feed = DeltaFeed(tmp_path / "table", split="train")
    assert (feed.rows, feed.stored_size) == (4, (48, 48))
    assert {row["format"] for row in DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()} == {"jpeg"}


def test_the_loader_gives_the_pixels_that_the_feed_gives(tmp_path):
    made = photographs(tmp_path, 4, classes=1)
    files = write_table(made, tmp_path / "table", 3, 1)
    loader = gpu.Files(files, 64)
    feed = DeltaFeed(tmp_path / "table", split="train", shuffle=False).as_numpy(3, image_size=64, dtype="uint8")
    ((images, _, _),) = feed
    given = {loader[index][0].tobytes() for index in range(len(loader))}
    assert given == {np.asarray(image).tobytes() for image in images}
