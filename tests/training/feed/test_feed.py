"""A feed: which rows its filters keep, what its arguments may be, and what is refused before the first step."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from feed_tables import append, changed, flat, image_rows, labels_of, real, write_layout

from lakelens import DeltaFeed
from lakelens.errors import (
    EmptyFeedError,
    InvalidArgumentError,
    NotAnImageTableError,
    VersionFilesMissingError,
    VersionNotFoundError,
)
from lakelens.training.feed.plan.feed_plan import RowFilter

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def feed(uneven) -> DeltaFeed:
    return DeltaFeed(uneven, split="train", seed=3)


def test_a_position_of_another_order_is_refused(feed, uneven):
    position = feed.position(2, 16)
    with pytest.raises(InvalidArgumentError, match="another order"):
        DeltaFeed(uneven, seed=4).as_numpy(16, start=position)
    with pytest.raises(InvalidArgumentError, match="is not a position"):
        feed.as_numpy(16, start={"step": 3})


@pytest.mark.parametrize(
    ("column", "values"), [("path", ("a", "b", "c")), ("path", (None, "a", "b")), ("label", (8, 9, 10))]
)
def test_an_order_does_not_depend_on_the_order_of_a_filters_values(uneven, column, values):
    plan = DeltaFeed(uneven).plan
    filters = [RowFilter(column, shuffled) for shuffled in permutations(values)]
    assert len({replace(plan, filters=(one,)).fingerprint for one in filters}) == 1


def test_numbers_may_be_those_of_numpy(uneven):
    feed = DeltaFeed(uneven, seed=np.int64(3), memory_bytes=np.int64(1 << 20))
    images, labels, _ = next(feed.as_numpy(np.int32(4), np.int64(0), np.int64(1), image_size=np.int64(8)))
    assert images.shape == (4, 8, 8, 3)
    assert labels.tolist() == real(next(feed.as_numpy(4, image_size=np.array([8, 8]))))


def test_nested_columns_are_compared_with_null_only(tmp_path):
    append(tmp_path / "t", changed(image_rows(range(3)), annotations=[[{"label": 1, "xmin": 0.0}], None, []]))
    assert labels_of(DeltaFeed(tmp_path / "t", filters={"annotations": None}).as_numpy(4)) == [[1]]
    with pytest.raises(InvalidArgumentError, match=r"'annotations' is array<struct<.*compared with null \(None\) only"):
        DeltaFeed(tmp_path / "t", filters={"annotations": [[]]})


def test_rows_are_chosen_by_a_column_that_is_no_partition(uneven):
    feed = DeltaFeed(uneven, filters={"label": [3, 4, 51, 60, 90, 1000]}, seed=2)
    assert feed.rows == 5
    assert sorted(flat(labels_of(feed.as_numpy(2)))) == [3, 4, 51, 60, 90]
    even = {"label": list(range(0, 91, 2)), "split": "train"}
    for memory_bytes in (1 << 30, 40_000):
        every = DeltaFeed(uneven, filters=even, memory_bytes=memory_bytes)
        ranks = [flat(labels_of(every.as_numpy(8, rank, 3))) for rank in range(3)]
        assert sorted(flat(ranks)) == list(range(0, 91, 2))


def test_rank_and_size_are_found_from_the_running_job(feed, monkeypatch):
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    assert labels_of(feed.as_numpy(16)) == labels_of(feed.as_numpy(16, 1, 2))


def test_the_first_batch_waits_for_no_row_group_but_its_own(tmp_path):
    feed = DeltaFeed(write_layout(tmp_path / "t", [4, 4]), shuffle=False)
    Path(feed.plan.file_location(1)).unlink()
    batches = feed.as_numpy(4)
    assert len(real(next(batches))) == 4
    with pytest.raises(VersionFilesMissingError):
        next(batches)


# --- bad input: before the first step, with the value, the rule and the way out --------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"version": 99}, VersionNotFoundError, "version 99 .* versions 0 to 3"),
        ({"version": "2001-01-01T00:00Z"}, VersionNotFoundError, "2001-01-01.*its log covers"),
        ({"split": "holdout"}, InvalidArgumentError, "no rows with split='holdout'; split is one of 'train'"),
        ({"split": "train", "filters": {"split": "test"}}, InvalidArgumentError, "both choose by column 'split'; give"),
        ({"split": "train", "split_column": "fold"}, NotAnImageTableError, "no column 'fold'.*it has path, image"),
        ({"split": "x", "split_column": "label"}, InvalidArgumentError, r"label=\['x'\] does not fit .* integer"),
        ({"filters": {"label": 1000}}, EmptyFeedError, "no rows with label=1000"),
        ({"filters": {"colour": 1}}, NotAnImageTableError, "no column 'colour'"),
        ({"memory_bytes": 1e9}, InvalidArgumentError, "memory_bytes=1000000000.0: give a whole number"),
        ({"image_column": "picture"}, NotAnImageTableError, "no column 'picture'"),
        ({"label_column": "class"}, NotAnImageTableError, "no column 'class'"),
        ({"label_column": "path"}, NotAnImageTableError, "'path' is string"),
        ({"lanes": 0}, InvalidArgumentError, "lanes=0"),
        ({"seed": None}, InvalidArgumentError, "seed=.*whole number"),
    ],
)
def test_a_feed_that_cannot_be_is_refused_where_it_is_built(uneven, arguments, error, words):
    with pytest.raises(error, match=words):
        DeltaFeed(uneven, **arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"global_batch_size": "4"}, "global_batch_size='4': give a whole number of at least 1"),
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"global_batch_size": 4, "image_size": (8, True)}, r"image_size=\(8, True\)"),
        ({"global_batch_size": 4, "rank": 4, "size": 4}, "ranks of a job of size 4 are 0 to 3"),
        ({"global_batch_size": 4, "rank": -1, "size": 4}, "rank=-1"),
        ({"global_batch_size": 4, "rank": 1}, "rank=1, size=None: give both"),
        ({"global_batch_size": 4, "epochs": 0}, "epochs=0"),
        ({"global_batch_size": 4, "image_size": 0}, "image_size=0"),
        ({"global_batch_size": 4, "dtype": "int8"}, "dtype='int8'"),
        ({"global_batch_size": 4, "prefetch": -1}, "prefetch=-1"),
        ({"global_batch_size": 4, "box_classes": 0}, "box_classes=0"),
        ({"global_batch_size": 4, "box_classes": 2}, "box_classes=2: .* has no column 'annotations'"),
        ({"global_batch_size": 4, "decode_threads": 0}, "decode_threads=0"),
        ({"global_batch_size": 4, "reader_threads": 0}, "reader_threads=0"),
        ({"global_batch_size": 4, "read_timeout_s": 0}, "read_timeout_s=0"),
        ({"global_batch_size": 4, "bad_rows": "ignore"}, "bad_rows='ignore'"),
    ],
)
def test_batches_that_cannot_be_are_refused_before_the_first_step(feed, arguments, words):
    with pytest.raises(InvalidArgumentError, match=words):
        feed.as_numpy(**arguments)


@pytest.mark.parametrize("partitioned", [True, False])
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (float("nan"), [1, 4]),
        ([float("nan"), None], [1, 2, 4]),
        (0.0, [0, 3]),
        (-0.0, [0, 3]),
        (np.float64(0), [0, 3]),
        ([1.5, None], [2, 5]),
        (2.5, []),
        ([float("inf"), -1.0], []),
    ],
)
def test_filters_compare_floats_as_spark_does_in_columns_and_partitions(tmp_path, partitioned, wanted, found):
    nan = float("nan")
    values = pa.array([0.0, nan, None, -0.0, -nan, 1.5], pa.float64())
    rows = pa.table({"f": values, "n": pa.array(range(6), pa.int64())})
    write_deltalake(str(tmp_path), rows, partition_by=["f"] if partitioned else None)
    with nullcontext() if found else pytest.raises((InvalidArgumentError, EmptyFeedError), match="no rows with f="):
        feed = DeltaFeed(tmp_path, image_column=None, label_column=None, filters={"f": wanted})
        columns, _ = next(feed.as_column_numpy(6, columns=["n"]))
        assert sorted(columns["n"][: feed.rows].tolist()) == found
