"""The feed through tf.data: exact epochs, one order at any rank count, pixels, errors before and in the pipeline."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from feed_tables import HEIGHT, WIDTH, append, colour_of, flat, image_rows, labels_of, real, write_layout
from leftovers import feed_threads

from lakelens import DeltaFeed
from lakelens.errors import (
    EmptyFeedError,
    InvalidArgumentError,
    NotADeltaTableError,
    NotAnImageTableError,
    VersionFilesMissingError,
    VersionNotFoundError,
)
from lakelens.training.feed.plan.feed_plan import RowFilter

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def uneven(tmp_path_factory) -> Path:
    """91 rows in files of 50, 7, 1 and 33, row groups of at most 9."""
    return write_layout(tmp_path_factory.mktemp("feed") / "uneven", [50, 7, 1, 33], row_group_rows=9)


@pytest.fixture(scope="module")
def feed(uneven) -> DeltaFeed:
    return DeltaFeed(uneven, split="train", seed=3)


def global_batches(feed: DeltaFeed, global_batch_size: int, size: int, **options) -> list[list[int]]:
    """Every rank's rows, put together batch by batch."""
    ranks = [feed.as_dataset(global_batch_size, rank, size, **options) for rank in range(size)]
    return [sorted(flat(real(part) for part in parts)) for parts in zip(*ranks, strict=True)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_every_row_is_fed_once_per_epoch_over_all_ranks_with_uneven_row_groups(feed, size):
    batches = global_batches(feed, 16, size)
    assert sorted(flat(batches)) == list(range(91))
    assert len(batches) == feed.steps_per_epoch(16, size) == 6


def test_global_batches_are_the_same_at_any_number_of_ranks(feed):
    assert global_batches(feed, 10, 1) == global_batches(feed, 10, 2) == global_batches(feed, 10, 3)


def test_more_ranks_than_row_groups_and_than_rows(tmp_path):
    feed = DeltaFeed(write_layout(tmp_path / "t", [3]))
    batches = global_batches(feed, 8, 5)
    assert batches == [[0, 1, 2]]


def test_every_rank_takes_the_same_steps_and_pads_with_rows_of_weight_zero(feed):
    padded = 0
    for rank in range(4):
        dataset = feed.as_dataset(16, rank, 4)
        assert dataset.cardinality().numpy() == 6
        weights = [w.numpy() for _, _, w in dataset]
        assert [len(w) for w in weights] == [4] * 5 + [3]
        assert all((w == 1).all() for w in weights[:-1])
        padded += int((weights[-1] == 0).sum())
    assert padded == 6 * 16 - 91 - 4


def test_a_batch_that_the_ranks_do_not_divide_is_weighted_to_the_whole_batch(feed):
    parts = [next(iter(feed.as_dataset(10, rank, 4))) for rank in range(4)]
    losses = np.random.default_rng(0).random(100)
    per_rank = [np.sum(w.numpy() * losses[y.numpy()]) / 3 for _, y, w in parts]
    rows = flat(real(part) for part in parts)
    assert np.mean(per_rank) == pytest.approx(losses[rows].mean())


def test_epochs_differ_and_the_same_seed_repeats_them(feed, uneven):
    first, second = labels_of(feed.as_dataset(91)), labels_of(feed.as_dataset(91, epochs=2))
    assert second[0] == first[0]
    assert second[1] != first[0]
    assert sorted(second[1]) == sorted(first[0])
    assert labels_of(DeltaFeed(uneven, seed=3).as_dataset(91)) == first
    assert labels_of(DeltaFeed(uneven, seed=4).as_dataset(91)) != first


def test_without_shuffling_rows_come_in_stored_order(uneven):
    feed = DeltaFeed(uneven, shuffle=False)
    labels = flat(labels_of(feed.as_dataset(7)))
    starts = [int(np.flatnonzero(np.array(labels) == first)[0]) for first in (0, 50, 57, 58)]
    for start, first, rows in zip(starts, (0, 50, 57, 58), (50, 7, 1, 33), strict=True):
        assert labels[start : start + rows] == list(range(first, first + rows))


@pytest.mark.parametrize("steps", [0, 1, 5, 6, 8, 12, 17])
def test_a_position_resumes_with_exactly_the_rows_that_are_left(feed, steps):
    whole = labels_of(feed.as_dataset(16, epochs=3))
    position = feed.position(steps, 16)
    rest = labels_of(feed.as_dataset(16, epochs=3 - position["epoch"], start=position))
    assert rest == whole[steps:]


def test_a_position_can_be_resumed_with_other_ranks_and_another_batch_size(feed):
    position = feed.position(2, 16)
    seen = flat(labels_of(feed.as_dataset(16))[:2])
    rest = flat(global_batches(feed, 5, 3, start=position))
    assert sorted(seen + rest) == list(range(91))


def test_a_position_of_another_order_is_refused(feed, uneven):
    position = feed.position(2, 16)
    with pytest.raises(InvalidArgumentError, match="another order"):
        DeltaFeed(uneven, seed=4).as_dataset(16, start=position)
    with pytest.raises(InvalidArgumentError, match="is no position"):
        feed.as_dataset(16, start={"step": 3})


@pytest.mark.parametrize(
    ("column", "values"), [("path", ("a", "b", "c")), ("path", (None, "a", "b")), ("label", (8, 9, 10))]
)
def test_an_order_does_not_depend_on_the_order_of_a_filters_values(uneven, column, values):
    plan = DeltaFeed(uneven).plan
    filters = [RowFilter(column, shuffled) for shuffled in permutations(values)]
    assert len({replace(plan, filters=(one,)).fingerprint for one in filters}) == 1


@pytest.mark.parametrize("form", ["jpeg", "png", "raw_rgb"])
def test_each_stored_form_gives_its_pixels(tmp_path, form):
    feed = DeltaFeed(write_layout(tmp_path / form, [5, 6], form=form))
    dataset = feed.as_dataset(4)
    assert [tuple(spec.shape) for spec in dataset.element_spec] == [(None, HEIGHT, WIDTH, 3), (None,), (None,)]
    assert [spec.dtype.name for spec in dataset.element_spec] == ["float32", "int32", "float32"]
    for images, labels, weights in dataset:
        wanted = np.array([colour_of(label) for label in labels.numpy()], dtype=np.float32)[:, None, None, :]
        off = np.abs(images.numpy() - wanted)[weights.numpy() > 0].max()
        assert off <= (4 if form == "jpeg" else 0)


def test_stored_forms_may_be_mixed_in_a_table(tmp_path):
    for n, form in enumerate(["jpeg", "raw_rgb", "png", "raw_rgb"]):
        append(tmp_path / "t", image_rows(range(10 * n, 10 * n + 10), form))
    for images, labels, _ in DeltaFeed(tmp_path / "t").as_dataset(8, dtype="uint8"):
        wanted = np.array([colour_of(label) for label in labels.numpy()])[:, None, None, :]
        assert np.abs(images.numpy().astype(int) - wanted).max() <= 4


def test_images_are_resized_on_request(feed):
    images, labels, _ = next(iter(feed.as_dataset(4, image_size=(8, 10))))
    assert images.shape == (4, 8, 10, 3)
    wanted = np.array([colour_of(label) for label in labels.numpy()])[:, None, None, :]
    assert np.abs(images.numpy() - wanted).max() <= 4


def test_numbers_may_be_those_of_numpy(uneven):
    feed = DeltaFeed(uneven, seed=np.int64(3), memory_bytes=np.int64(1 << 20))
    images, labels, _ = next(feed.as_numpy(np.int32(4), np.int64(0), np.int64(1), image_size=np.int64(8)))
    assert images.shape == (4, 8, 8, 3)
    assert labels.tolist() == real(next(feed.as_numpy(4, image_size=np.array([8, 8]))))


def test_nested_columns_are_compared_with_null_only(tmp_path):
    boxes = [[{"label": 1, "xmin": 0.0}], None, []]
    append(tmp_path / "t", image_rows(range(3)).append_column("annotations", pa.array(boxes)))
    assert labels_of(DeltaFeed(tmp_path / "t", filters={"annotations": None}).as_numpy(4)) == [[1]]
    with pytest.raises(InvalidArgumentError, match=r"'annotations' is array<struct<.*compared with null \(None\) only"):
        DeltaFeed(tmp_path / "t", filters={"annotations": [[]]})


def test_preprocess_runs_inside_the_pipeline(feed):
    dataset = feed.as_dataset(4, preprocess=lambda images, labels: (images / 255.0, labels + 1000))
    images, labels, _ = next(iter(dataset))
    assert images.numpy().max() <= 1.0
    assert labels.numpy().min() >= 1000


@pytest.mark.spark
def test_a_version_keeps_its_rows_after_newer_versions_and_a_delete(spark, tmp_path):
    location = write_layout(tmp_path / "t", [10])
    append(location, image_rows(range(10, 20)))
    spark.sql(f"DELETE FROM delta.`{location}` WHERE label < 5")  # noqa: S608
    assert sorted(flat(labels_of(DeltaFeed(location, version=0).as_dataset(4)))) == list(range(10))
    assert sorted(flat(labels_of(DeltaFeed(location, version=1).as_dataset(4)))) == list(range(20))
    latest = DeltaFeed(location)
    assert latest.version == 2
    assert sorted(flat(labels_of(latest.as_dataset(4)))) == list(range(5, 20))


def test_a_feed_keeps_its_version_while_a_writer_appends(tmp_path):
    feed = DeltaFeed(write_layout(tmp_path / "t", [10, 10]), seed=1)
    seen = []
    for step, batch in enumerate(feed.as_dataset(5)):
        seen += real(batch)
        append(tmp_path / "t", image_rows(range(100 + step, 101 + step)))
    assert sorted(seen) == list(range(20))


def test_a_split_is_its_rows_only(tmp_path):
    append(tmp_path / "t", image_rows(range(0, 10)))
    append(tmp_path / "t", image_rows(range(10, 14), split="validation"))
    assert DeltaFeed(tmp_path / "t").rows == 14
    validation = DeltaFeed(tmp_path / "t", split="validation", shuffle=False)
    assert labels_of(validation.as_dataset(4)) == [[10, 11, 12, 13]]


def test_a_pickled_feed_feeds_the_same_rows(feed):
    again = pickle.loads(pickle.dumps(feed))
    assert len(pickle.dumps(feed)) < 8_000
    assert labels_of(again.as_dataset(16)) == labels_of(feed.as_dataset(16))


def test_rows_are_chosen_by_a_column_that_is_no_partition(uneven):
    feed = DeltaFeed(uneven, filters={"label": [3, 4, 51, 60, 90, 1000]}, seed=2)
    assert feed.rows == 5
    assert sorted(flat(labels_of(feed.as_dataset(2)))) == [3, 4, 51, 60, 90]
    every = DeltaFeed(uneven, filters={"label": list(range(0, 91, 2)), "split": "train"})
    for size in (1, 3):
        assert sorted(flat(global_batches(every, 8, size))) == list(range(0, 91, 2))


def test_row_groups_larger_than_the_memory_are_read_in_chunks(uneven):
    small = DeltaFeed(uneven, seed=3, memory_bytes=40_000)
    assert small.plan.reading_bytes() <= 40_000
    assert small.plan.chunk_bytes < small.plan.row_group_bytes
    batches = global_batches(small, 16, 1)
    assert sorted(flat(batches)) == list(range(91))
    assert global_batches(small, 16, 3) == batches
    kept = DeltaFeed(uneven, memory_bytes=40_000, filters={"label": list(range(0, 91, 2))})
    assert sorted(flat(global_batches(kept, 7, 2))) == list(range(0, 91, 2))


@pytest.mark.spark
def test_class_names_come_from_the_tables_property(spark, tmp_path):
    location = write_layout(tmp_path / "t", [3])
    assert DeltaFeed(location).class_names is None
    labels = '{"cat": 0, "dog": 2}'
    spark.sql(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ('lakelens.labels' = '{labels}')")
    assert DeltaFeed(location).class_names == ["cat", "", "dog"]


def test_building_a_feed_needs_neither_tensorflow_nor_a_jvm(uneven):
    code = (
        "import sys; from lakelens import DeltaFeed; "
        f"f = DeltaFeed({str(uneven)!r}, split='train'); "
        "print(f.rows, 'tensorflow' in sys.modules, 'pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == ["91", "False", "False"]


def test_rank_and_size_are_found_from_the_running_job(feed, monkeypatch):
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    assert labels_of(feed.as_dataset(16)) == labels_of(feed.as_dataset(16, 1, 2))


def assert_no_thread_is_left() -> None:
    deadline = time.monotonic() + 60
    while feed_threads() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert feed_threads() == []


def test_threads_end_with_the_dataset_after_a_break_an_error_and_the_end(feed):
    for _ in feed.as_dataset(16, epochs=None):
        assert feed_threads()
        break
    assert_no_thread_is_left()
    list(feed.as_dataset(16))
    assert_no_thread_is_left()

    def failing(images, labels):
        import tensorflow as tf

        return tf.debugging.check_numerics(tf.math.log(images - 1000.0), "not a number"), labels

    with pytest.raises(Exception, match="not a number"):
        list(feed.as_dataset(16, preprocess=failing))
    assert_no_thread_is_left()


# --- bad input: before the first step, with the value, the rule and the way out --------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"version": 99}, VersionNotFoundError, "version 99 .* versions 0 to 3"),
        ({"version": -1}, VersionNotFoundError, "version -1"),
        ({"version": "2001-01-01"}, VersionNotFoundError, "2001-01-01.*its log covers"),
        ({"split": "holdout"}, InvalidArgumentError, "no rows with split='holdout'; split is one of 'train'"),
        (
            {"split": "train", "filters": {"split": "test"}},
            InvalidArgumentError,
            r"split='train' and filters=\{'split': 'test'\} both choose by column 'split'; give one of them",
        ),
        ({"split": "train", "split_column": "fold"}, NotAnImageTableError, "no column 'fold'.*it has path, image"),
        ({"split": "x", "split_column": "label"}, InvalidArgumentError, r"label=\['x'\] does not fit .* integer"),
        ({"filters": {"label": 1000}}, EmptyFeedError, "no rows with label=1000"),
        ({"filters": {"colour": 1}}, NotAnImageTableError, "no column 'colour'"),
        ({"memory_bytes": 0}, InvalidArgumentError, "memory_bytes=0"),
        ({"image_column": "picture"}, NotAnImageTableError, "no column 'picture'"),
        ({"label_column": "class"}, NotAnImageTableError, "no column 'class'"),
        ({"label_column": "path"}, NotAnImageTableError, "'path' is string"),
        ({"lanes": 0}, InvalidArgumentError, "lanes=0"),
        ({"seed": None}, InvalidArgumentError, "seed=None: give a whole number"),
        ({"memory_bytes": 1e9}, InvalidArgumentError, "memory_bytes=1000000000.0: give a whole number"),
    ],
)
def test_a_feed_that_cannot_be_is_refused_where_it_is_built(uneven, arguments, error, words):
    with pytest.raises(error, match=words):
        DeltaFeed(uneven, **arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"global_batch_size": "4"}, "global_batch_size='4': give a whole number of at least 1"),
        ({"global_batch_size": 4, "image_size": 8.0}, "image_size=8.0"),
        ({"global_batch_size": 4, "image_size": (8, True)}, r"image_size=\(8, True\)"),
        ({"global_batch_size": 4, "rank": 4, "size": 4}, "rank=4"),
        ({"global_batch_size": 4, "rank": 1}, "rank=1, size=None: give both"),
        ({"global_batch_size": 4, "epochs": 0}, "epochs=0"),
        ({"global_batch_size": 4, "image_size": 0}, "image_size=0"),
        ({"global_batch_size": 4, "dtype": "int8"}, "dtype='int8'"),
        ({"global_batch_size": 4, "prefetch": -1}, "prefetch=-1"),
        ({"global_batch_size": 4, "box_classes": 0}, "box_classes=0"),
        ({"global_batch_size": 4, "decode_threads": 0}, "decode_threads=0"),
        ({"global_batch_size": 4, "one_hot": -1}, "one_hot=-1"),
        ({"global_batch_size": 4, "reader_threads": 0}, "reader_threads=0"),
        ({"global_batch_size": 4, "read_timeout_s": 0}, "read_timeout_s=0"),
        ({"global_batch_size": 4, "bad_rows": "ignore"}, "bad_rows='ignore'"),
    ],
)
def test_a_dataset_that_cannot_be_is_refused_before_the_first_step(feed, arguments, words):
    with pytest.raises(InvalidArgumentError, match=words):
        feed.as_dataset(**arguments)


def test_a_folder_that_is_no_delta_table_is_refused(tmp_path):
    (tmp_path / "plain").mkdir()
    for location in (tmp_path / "plain", tmp_path / "nothing"):
        with pytest.raises(NotADeltaTableError, match=f"{location.name} holds no Delta table"):
            DeltaFeed(location)


def test_a_table_without_rows_is_refused(tmp_path):
    write_layout(tmp_path / "t", [4])
    from deltalake import DeltaTable

    DeltaTable(str(tmp_path / "t")).delete()
    with pytest.raises(EmptyFeedError, match="holds no rows"):
        DeltaFeed(tmp_path / "t")


def test_a_vacuumed_version_fails_before_the_first_step_with_its_version_and_file(tmp_path):
    from deltalake import DeltaTable

    location = write_layout(tmp_path / "t", [4, 4])
    DeltaTable(str(location)).delete("label < 4")
    DeltaTable(str(location)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(
        VersionFilesMissingError, match=r"t@1: 1 of its 2 data file\(s\) are gone: split=train/part-.*VACUUM"
    ):
        DeltaFeed(location, version=1)
    assert sorted(flat(labels_of(DeltaFeed(location).as_dataset(4)))) == [4, 5, 6, 7]


def test_a_time_is_the_last_version_committed_by_then(tmp_path):
    location = write_layout(tmp_path / "t", [4])
    between = datetime.now(timezone.utc)
    time.sleep(0.05)
    append(location, image_rows(range(4, 8)))
    assert DeltaFeed(location, version=between).version == 0
    assert DeltaFeed(location, version=between.isoformat()).version == 0
    assert DeltaFeed(location, version="latest").version == 1
    assert DeltaFeed(location, version=between + timedelta(days=1)).version == 1
    with pytest.raises(VersionNotFoundError, match="no version is known"):
        DeltaFeed(location, version=between - timedelta(days=1))


def test_a_row_that_no_longer_decodes_is_named(tmp_path):
    rows = image_rows(range(10))
    images = rows.column("image").to_pylist()
    images[6] = images[6][:-40]
    append(tmp_path / "t", rows.set_column(1, "image", pa.array(images, pa.binary())))
    feed = DeltaFeed(tmp_path / "t")
    with pytest.raises(Exception, match=r"BadRowError.*row 6 of .*part-"):
        list(feed.as_dataset(4))
    kept = labels_of(feed.as_dataset(4, bad_rows="skip"))
    assert sorted(flat(kept)) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
