"""Decoded images in a memory-mapped file: the batches of a feed without it, written once, bounded, and shared."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pyarrow as pa
import pytest
import simplejpeg
from feed_tables import append, changed, encoded, flat, image_rows, labels_of, real, write_layout

from lakelens import DeltaFeed
from lakelens.errors import BadRowError, InvalidArgumentError, StoreError
from lakelens.training.feed import decoded_cache
from lakelens.training.rank import process_context
from lakelens.training.rank.driver_line import DriverLine
from lakelens.training.rank.process_context import RankLink

pytestmark = pytest.mark.unit

SIZE = (8, 10)


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
def test_order_rows_pixels_and_weights_are_those_of_a_feed_without_cache(uneven, tmp_path, chosen):
    feed = DeltaFeed(uneven, seed=3, **chosen)
    for rank in range(2):
        options = {"image_size": SIZE, "epochs": 2, "start": feed.position(1, 16)}
        plain = list(feed.as_numpy(16, rank, 2, **options))
        assert_same(feed.as_numpy(16, rank, 2, cache=tmp_path, **options), plain)
    assert len(entries(tmp_path)) == 1


def test_boxes_labels_and_bad_rows_are_those_of_a_feed_without_cache(tmp_path):
    box = {"label": 1, "xmin": 1.0, "ymin": 2.0, "xmax": 8.0, "ymax": 6.0}
    images = [encoded(n) if n not in (2, 5) else b"no image" for n in range(8)]
    rows = changed(image_rows(range(8)), image=images, annotations=[[box] * (n % 3) for n in range(8)])
    append(tmp_path / "t", rows.drop(["height", "width"]))
    feed = DeltaFeed(tmp_path / "t")
    with pytest.raises(BadRowError, match=r"row 2 of .* does not decode to 8 x 10 pixels: no decoder knows"):
        feed.as_numpy(4, image_size=SIZE, cache=tmp_path / "cache")
    assert entries(tmp_path / "cache") == []
    for output in ({"box_classes": 2}, {"replicas": 2}):
        options = {"image_size": SIZE, "bad_rows": "skip", "dtype": "uint8", **output}
        assert_same(feed.as_numpy(4, cache=tmp_path / "cache", **options), list(feed.as_numpy(4, **options)))
    with pytest.raises(BadRowError, match=r"row (2|5) of .* does not decode to 8 x 10 pixels: no decoder knows"):
        list(feed.as_numpy(4, image_size=SIZE, cache=tmp_path / "cache"))


def put_another_array(file: Path) -> None:
    with file.open("wb") as opened:
        np.save(opened, np.ones(91))


@pytest.mark.parametrize("name", ["images.npy", "sizes.npy", "rows.npy", "entry.json"])
def test_a_damaged_entry_is_made_again(uneven, tmp_path, name, caplog):
    feed, cached = DeltaFeed(uneven), {"image_size": SIZE, "cache": tmp_path}
    plain = list(feed.as_numpy(91, image_size=SIZE))
    assert_same(feed.as_numpy(91, **cached), plain)
    damages = [
        Path.unlink,
        lambda file: os.truncate(file, file.stat().st_size - 1),
        lambda file: os.truncate(file, 0),
        lambda file: file.write_text("null"),
        put_another_array,
    ]
    for damage in damages:
        (entry,) = entries(tmp_path)
        caplog.clear()
        damage(entry / name)
        assert_same(feed.as_numpy(91, **cached), plain)
        assert (f"{entry} of the cache is damaged" in caplog.text) is (damage is not Path.unlink)
        assert (entry / name).stat().st_size > 1
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def rename_columns(table: Path, version: int, **stored: str) -> None:
    """Commits a version in which some columns have other stored names, as a rename by column mapping does."""
    log = table / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    metadata = next(action["metaData"] for action in first if "metaData" in action)
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"], start=1):
        mapping = {"id": number, "physicalName": stored.get(field["name"], field["name"])}
        field["metadata"] = {f"delta.columnMapping.{name}": value for name, value in mapping.items()}
    metadata["schemaString"] = json.dumps(schema)
    metadata["configuration"] = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
    actions = [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": metadata}]
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)) + "\n")


def test_a_column_that_takes_the_name_of_another_one_has_its_own_entry(tmp_path):
    thumbs, turned = [encoded(n) for n in range(100, 106)], pa.array(range(5, -1, -1), pa.int32())
    append(tmp_path / "t", changed(image_rows(range(6)), thumb=thumbs, turned=turned))
    rename_columns(tmp_path / "t", 1, image="thumb", thumb="image")
    rename_columns(tmp_path / "t", 2, label="turned", turned="label")
    for version in range(3):
        feed = DeltaFeed(tmp_path / "t", version, filters={"label": [0, 1, 4]})
        plain = list(feed.as_numpy(4, image_size=SIZE))
        assert_same(feed.as_numpy(4, image_size=SIZE, cache=tmp_path / "cache"), plain)
    assert len(entries(tmp_path / "cache")) == 3


def test_later_calls_and_processes_read_what_the_first_has_decoded(uneven, tmp_path, monkeypatch):
    feed = DeltaFeed(uneven)
    wanted = labels_of(feed.as_numpy(16, image_size=SIZE, cache=tmp_path))
    monkeypatch.setattr(decoded_cache, "_decode_all", None)
    assert labels_of(DeltaFeed(uneven).as_numpy(16, image_size=SIZE, cache=tmp_path)) == wanted
    assert labels_of(DeltaFeed(uneven, seed=9).as_numpy(16, image_size=SIZE, cache=tmp_path)) != wanted
    for other in ({"image_size": 9}, {"image_size": SIZE, "letterbox": True}):
        with pytest.raises(TypeError):
            feed.as_numpy(16, cache=tmp_path, **other)
    with pytest.raises(TypeError):
        DeltaFeed(uneven, version=2).as_numpy(16, image_size=SIZE, cache=tmp_path)
    for module in (PIL, simplejpeg):
        with monkeypatch.context() as patched:
            patched.setattr(module, "__version__", "0.1")
            with pytest.raises(TypeError):
                feed.as_numpy(16, image_size=SIZE, cache=tmp_path)


def test_copies_of_a_table_that_went_different_ways_have_entries_of_their_own(tmp_path):
    """They have one id, and the same numbers of versions and rows."""
    first = write_layout(tmp_path / "first", [4])
    second = Path(shutil.copytree(first, tmp_path / "second"))
    feeds = []
    for place, numbers in ((first, range(10, 14)), (second, range(20, 24))):
        append(place, image_rows(numbers))
        feeds.append(DeltaFeed(place, version=1, shuffle=False))
    assert feeds[0].plan.snapshot.table_id == feeds[1].plan.snapshot.table_id
    for feed in feeds:
        plain = list(feed.as_numpy(8, image_size=SIZE))
        assert_same(feed.as_numpy(8, image_size=SIZE, cache=tmp_path / "cache"), plain)
    assert len(entries(tmp_path / "cache")) == 2


def read(table: Path, cache: Path, found: Any) -> None:
    found.put(flat(map(real, DeltaFeed(table).as_numpy(16, image_size=SIZE, cache=cache))))


def test_two_processes_at_once_write_one_entry(uneven, tmp_path):
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    processes = [context.Process(target=read, args=(uneven, tmp_path, found)) for _ in range(2)]
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


def test_what_a_writer_writes_counts_and_once_it_is_killed_the_next_one_of_any_entry_cleans_up(uneven, tmp_path):
    cache, other = tmp_path / "cache", {"image_size": SIZE, "letterbox": True, "cache_bytes": 30_000}
    writer = multiprocessing.get_context("spawn").Process(target=hang, args=(uneven, cache), daemon=True)
    writer.start()
    try:
        while len(list(cache.glob(".*/*.npy"))) < 2:
            time.sleep(0.05)
        with pytest.raises(InvalidArgumentError, match=r"cannot be removed, \d+ of them because other processes write"):
            DeltaFeed(uneven).as_numpy(16, cache=cache, **other)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    assert entries(cache) == []
    again = Path(shutil.copytree(cache, tmp_path / "again"))
    assert sorted(flat(map(real, DeltaFeed(uneven).as_numpy(16, image_size=SIZE, cache=cache)))) == list(range(91))
    assert len(entries(cache)) == 1
    assert list(cache.glob(".*")) == []
    mine = [again / ".settings.d", again / "notes"]  # of the user
    for folder in mine:
        folder.mkdir()
        (folder / "entry.json").write_bytes(bytes(20_000))
    DeltaFeed(uneven).as_numpy(16, cache=again, **other)
    assert list(again.glob(".*")) == mine[:1]
    assert len(entries(again)) == 3  # the new one and those of the user


def test_writers_that_make_room_at_once_stay_within_the_bytes(uneven, tmp_path):
    feed, limit = DeltaFeed(uneven), 2 * 91 * (8 * 13 * 3 + 16)

    def use(widths: range) -> list[list[int]]:
        options = {"cache": tmp_path, "cache_bytes": limit}
        return [labels_of(feed.as_numpy(91, image_size=(8, width), **options))[0] for width in widths]

    with ThreadPoolExecutor(2) as pool:
        found = [rows for used in pool.map(use, (range(2, 14, 2), range(3, 14, 2))) for rows in used]
    assert all(sorted(rows) == list(range(91)) for rows in found)
    assert sum(file.stat().st_size for file in tmp_path.glob("*/*.npy")) <= limit


def test_the_bytes_are_reserved_first_and_a_full_disk_is_an_error_that_names_the_cache(uneven, tmp_path, monkeypatch):
    def fill(*_: Any) -> None:
        (images,) = tmp_path.glob(".*/images.npy")
        assert images.stat().st_blocks * 512 >= images.stat().st_size
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(decoded_cache, "_decode_all", fill)
    with pytest.raises(InvalidArgumentError, match=r"cache: .* take 21840 bytes, the disk of .* free; name another"):
        DeltaFeed(uneven).as_numpy(16, image_size=SIZE, cache=tmp_path)
    assert list(tmp_path.glob(".*")) == []


def test_another_users_entry_is_read_and_a_folder_that_cannot_be_written_is_an_error_that_names_it(
    uneven, tmp_path, monkeypatch
):
    feed, cache = DeltaFeed(uneven), tmp_path / "cache"
    wanted = labels_of(feed.as_numpy(16, image_size=SIZE, cache=cache))
    (entry,) = entries(cache)
    lock = cache / f"{entry.name}.lock"
    lock.unlink()
    lock.mkdir()  # as little to be opened as another user's file, also for root

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", refuse)
        assert labels_of(feed.as_numpy(16, image_size=SIZE, cache=cache)) == wanted
    (entry / "entry.json").unlink()
    (tmp_path / "file").touch()
    for folder in (cache, tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidArgumentError, match=rf"cache: {folder} cannot be used: .*; name a folder"):
            feed.as_numpy(16, image_size=SIZE, cache=folder)


def test_a_failure_of_the_tables_store_is_not_one_of_the_cache_folder(uneven, tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise StoreError("s3://bucket/table: the store refused")

    monkeypatch.setattr(decoded_cache, "_decode_all", fail)
    with pytest.raises(StoreError, match="the store refused"):
        DeltaFeed(uneven).as_numpy(16, image_size=SIZE, cache=tmp_path)


def test_a_rank_reports_to_the_driver_while_it_decodes(uneven, tmp_path, monkeypatch):
    driver, rank = socket.socketpair()
    monkeypatch.setattr(decoded_cache, "_SECONDS_BETWEEN_REPORTS", 0.0)
    before = process_context.current()
    driver.setblocking(False)
    with driver, rank:
        process_context.attach(RankLink(0, 2, line=DriverLine(rank)))
        try:
            DeltaFeed(uneven).as_numpy(16, image_size=SIZE, cache=tmp_path)
        finally:
            process_context.attach(before)
        assert b"decoded 91 of 91 images of " in driver.recv(4096)


def test_entries_stay_within_their_bytes_and_those_used_longest_ago_go_first(uneven, tmp_path):
    feed, entry = DeltaFeed(uneven), 91 * 8 * 8 * 3

    def use(side: int, **options: bool) -> Path:
        before = set(entries(tmp_path))
        batches = feed.as_numpy(91, image_size=side, **options, cache=tmp_path, cache_bytes=3 * entry)
        assert len(real(next(batches))) == 91
        new = set(entries(tmp_path)) - before
        return new.pop() if new else tmp_path

    first, second = use(8), use(8, letterbox=True)
    os.utime(first / "entry.json", (1, 1))
    os.utime(second / "entry.json", (2, 2))
    use(8)  # used again
    third = use(9)
    assert set(entries(tmp_path)) == {first, third}
    with pytest.raises(InvalidArgumentError, match=r"take 27300 bytes, cache_bytes=100; raise it"):
        feed.as_numpy(91, image_size=10, cache=tmp_path, cache_bytes=100)
    with pytest.raises(InvalidArgumentError, match=r"cache=3: give True, or a folder"):
        feed.as_numpy(91, cache=3)
