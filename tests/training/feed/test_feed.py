"""The feed through tf.data: exact epochs, one order at any rank count, pixels, errors before and in the pipeline."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from feed_tables import HEIGHT, WIDTH, append, colour_of, flat, image_rows, labels_of, real, write_layout

from lakelens import DeltaFeed
from lakelens.errors import EmptyFeedError, InvalidArgumentError, NotAnImageTableError, VersionNotFoundError
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


def test_a_version_keeps_its_rows_after_newer_versions_and_a_delete(tmp_path):
    location = write_layout(tmp_path / "t", [10])
    append(location, image_rows(range(10, 20)))
    DeltaTable(str(location)).delete("label < 5")
    assert sorted(flat(labels_of(DeltaFeed(location, version=0).as_dataset(4)))) == list(range(10))
    assert sorted(flat(labels_of(DeltaFeed(location, version=1).as_dataset(4)))) == list(range(20))
    latest = DeltaFeed(location)
    assert latest.version == 2
    assert sorted(flat(labels_of(latest.as_dataset(4)))) == list(range(5, 20))


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
    even = {"label": list(range(0, 91, 2)), "split": "train"}
    for every in (DeltaFeed(uneven, filters=even), DeltaFeed(uneven, filters=even, memory_bytes=40_000)):
        for size in (1, 3):
            assert sorted(flat(global_batches(every, 8, size))) == list(range(0, 91, 2))


def test_rank_and_size_are_found_from_the_running_job(feed, monkeypatch):
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    assert labels_of(feed.as_dataset(16)) == labels_of(feed.as_dataset(16, 1, 2))


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
        ({"global_batch_size": 4, "reader_threads": 0}, "reader_threads=0"),
        ({"global_batch_size": 4, "read_timeout_s": 0}, "read_timeout_s=0"),
        ({"global_batch_size": 4, "bad_rows": "ignore"}, "bad_rows='ignore'"),
    ],
)
def test_a_dataset_that_cannot_be_is_refused_before_the_first_step(feed, arguments, words):
    with pytest.raises(InvalidArgumentError, match=words):
        feed.as_dataset(**arguments)
