"""Decoded images in a memory-mapped file: the batches of a feed without it, written once, bounded, and shared."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from feed_tables import append, encoded, flat, image_rows, labels_of, real, write_layout

from lakelens import DeltaFeed
from lakelens.errors import BadRowError, InvalidArgumentError
from lakelens.training.feed import decoded_cache

pytestmark = pytest.mark.unit

SIZE = (8, 10)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """91 rows in files of 50, 7, 1 and 33, row groups of at most 9."""
    return write_layout(tmp_path_factory.mktemp("cached") / "t", [50, 7, 1, 33], row_group_rows=9)


def entries(cache: Path) -> list[Path]:
    return [found.parent for found in cache.glob("*/entry.json")]


def assert_same(cached: Any, plain: Any) -> None:
    for ours, theirs in zip(cached, plain, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            pairs = [(one[name], other[name]) for name in one] if isinstance(one, dict) else [(one, other)]
            for found, wanted in pairs:
                assert found.dtype == wanted.dtype
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "chosen",
    [{}, {"shuffle": False}, {"memory_bytes": 40_000}, {"filters": {"label": list(range(0, 91, 3))}}],
    ids=["shuffled", "stored", "chunks", "filtered"],
)
@pytest.mark.parametrize("size", [1, 3])
def test_order_rows_pixels_and_weights_are_those_of_a_feed_without_cache(table, tmp_path, chosen, size):
    feed = DeltaFeed(table, seed=3, **chosen)
    for rank in range(size):
        options = {"image_size": SIZE, "epochs": 2, "start": feed.position(1, 16)}
        plain = list(feed.as_numpy(16, rank, size, **options))
        assert_same(feed.as_numpy(16, rank, size, cache=tmp_path, **options), plain)
    assert len(entries(tmp_path)) == 1


def test_boxes_labels_and_bad_rows_are_those_of_a_feed_without_cache(tmp_path):
    box = {"label": 1, "xmin": 1.0, "ymin": 2.0, "xmax": 8.0, "ymax": 6.0}
    images = [encoded(n) if n not in (2, 5) else b"no image" for n in range(8)]
    rows = image_rows(range(8)).set_column(1, "image", pa.array(images, pa.binary()))
    rows = rows.append_column("annotations", pa.array([[box] * (n % 3) for n in range(8)])).drop(["height", "width"])
    append(tmp_path / "t", rows)
    feed = DeltaFeed(tmp_path / "t")
    with pytest.raises(BadRowError, match=r"row 2 of .* does not decode to 8 x 10 pixels: no decoder knows"):
        feed.as_numpy(4, image_size=SIZE, cache=tmp_path / "cache")
    assert entries(tmp_path / "cache") == []
    for output in ({"max_boxes": 2}, {"one_hot": 8, "replicas": 2}):
        options = {"image_size": SIZE, "bad_rows": "skip", "dtype": "uint8", **output}
        assert_same(feed.as_numpy(4, cache=tmp_path / "cache", **options), list(feed.as_numpy(4, **options)))
    with pytest.raises(BadRowError, match=r"row (2|5) of .* does not decode to 8 x 10 pixels: no decoder knows"):
        list(feed.as_numpy(4, image_size=SIZE, cache=tmp_path / "cache"))


def test_later_calls_and_processes_read_what_the_first_has_decoded(table, tmp_path, monkeypatch):
    feed = DeltaFeed(table)
    wanted = labels_of(feed.as_numpy(16, image_size=SIZE, cache=tmp_path))
    monkeypatch.setattr(decoded_cache, "_decode_all", None)
    assert labels_of(DeltaFeed(table).as_numpy(16, image_size=SIZE, cache=tmp_path)) == wanted
    assert labels_of(DeltaFeed(table, seed=9).as_numpy(16, image_size=SIZE, cache=tmp_path)) != wanted
    for other in ({"image_size": 9}, {"image_size": SIZE, "jpeg": "fast"}):
        with pytest.raises(TypeError):
            feed.as_numpy(16, cache=tmp_path, **other)
    with pytest.raises(TypeError):
        DeltaFeed(table, version=2).as_numpy(16, image_size=SIZE, cache=tmp_path)


def test_copies_of_a_table_that_went_different_ways_have_entries_of_their_own(tmp_path):
    """They have one id, and the same numbers of versions and rows."""
    first = write_layout(tmp_path / "first", [4])
    second = Path(shutil.copytree(first, tmp_path / "second"))
    feeds = []
    for place, numbers in ((first, range(10, 14)), (second, range(20, 24))):
        append(place, image_rows(numbers))
        feeds.append(DeltaFeed(place, version=1, shuffle=False))
    assert feeds[0].plan.table_id == feeds[1].plan.table_id
    for feed in feeds:
        plain = list(feed.as_numpy(8, image_size=SIZE))
        assert_same(feed.as_numpy(8, image_size=SIZE, cache=tmp_path / "cache"), plain)
    assert len(entries(tmp_path / "cache")) == 2


def read(table: Path, cache: Path, found: Any) -> None:
    found.put(flat(map(real, DeltaFeed(table).as_numpy(16, image_size=SIZE, cache=cache))))


def test_two_processes_at_once_write_one_entry(table, tmp_path):
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    processes = [context.Process(target=read, args=(table, tmp_path, found)) for _ in range(2)]
    for process in processes:
        process.start()
    rows = [found.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert rows[0] == rows[1]
    assert sorted(rows[0]) == list(range(91))
    assert len(entries(tmp_path)) == 1


def hang(table: Path, cache: Path) -> None:
    decoded_cache._decode_all = lambda *_: time.sleep(600)
    DeltaFeed(table).as_numpy(16, image_size=SIZE, cache=cache)


def test_a_writer_that_is_killed_leaves_no_entry_and_the_next_one_cleans_up(table, tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=hang, args=(table, tmp_path))
    process.start()
    while not list(tmp_path.glob(".*/images.npy")):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert entries(tmp_path) == []
    assert sorted(flat(map(real, DeltaFeed(table).as_numpy(16, image_size=SIZE, cache=tmp_path)))) == list(range(91))
    assert len(entries(tmp_path)) == 1
    assert list(tmp_path.glob(".*")) == []


def test_entries_stay_within_their_bytes_and_those_used_longest_ago_go_first(table, tmp_path):
    feed, entry = DeltaFeed(table), 91 * 8 * 8 * 3

    def use(jpeg: str, side: int) -> Path:
        before = set(entries(tmp_path))
        batches = feed.as_numpy(91, image_size=side, jpeg=jpeg, cache=tmp_path, cache_bytes=3 * entry)
        assert len(real(next(batches))) == 91
        new = set(entries(tmp_path)) - before
        return new.pop() if new else tmp_path

    first, second = use("accurate", 8), use("fast", 8)
    os.utime(first / "entry.json", (1, 1))
    os.utime(second / "entry.json", (2, 2))
    use("accurate", 8)  # used again
    third = use("accurate", 9)
    assert set(entries(tmp_path)) == {first, third}
    with pytest.raises(InvalidArgumentError, match=r"take 27300 bytes, cache_bytes=100; raise it"):
        feed.as_numpy(91, image_size=10, cache=tmp_path, cache_bytes=100)
    with pytest.raises(InvalidArgumentError, match=r"cache=3: give True, or a folder"):
        feed.as_numpy(91, cache=3)
