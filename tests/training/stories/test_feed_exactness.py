"""Random tables read by random ranks: each row once, the same batches at any number of ranks, resumable anywhere."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from feed_tables import flat, write_numbers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakelens import DeltaFeed
from lakelens.training.feed.reading import OpenRowGroup

pytestmark = pytest.mark.unit

COLUMNS = ["label"]


def real(batch) -> list[int]:
    columns, weights = batch
    return columns["label"][weights > 0].tolist()


def global_batches(feed: DeltaFeed, global_batch_size: int, size: int, **options) -> list[list[int]]:
    """Every rank's rows, put together batch by batch; all ranks take as many steps."""
    ranks = [feed.as_column_numpy(global_batch_size, rank, size, columns=COLUMNS, **options) for rank in range(size)]
    return [sorted(flat(map(real, parts))) for parts in zip(*ranks, strict=True)]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(1, 12),
    st.sampled_from([200, 2_000, 1 << 30]),
    st.booleans(),
    st.integers(1, 30),
    st.integers(1, 5),
    st.integers(1, 4),
    st.data(),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_table_is_fed_exactly_by_any_ranks_from_any_position(
    files, row_group_rows, memory_bytes, shuffle, global_batch_size, size, threads, data
):
    with tempfile.TemporaryDirectory() as folder:
        table = write_numbers(Path(folder), files, row_group_rows)
        feed = DeltaFeed(table, seed=7, shuffle=shuffle, memory_bytes=memory_bytes)
        alone = global_batches(feed, global_batch_size, 1, epochs=2)
        steps = feed.steps_per_epoch(global_batch_size, size)
        assert len(alone) == 2 * steps
        for epoch in range(2):
            assert sorted(flat(alone[epoch * steps : (epoch + 1) * steps])) == list(range(sum(files)))
        assert global_batches(feed, global_batch_size, size, epochs=2, reader_threads=threads) == alone

        taken = data.draw(st.integers(0, 2 * steps - 1))
        position = json.loads(json.dumps(feed.position(taken, global_batch_size)))
        left = 2 - position["epoch"]
        assert global_batches(feed, global_batch_size, size, epochs=left, start=position) == alone[taken:]
        if left == 1:
            other = global_batches(feed, 7, 3, start=position)
            assert sorted(flat(other)) == sorted(flat(alone[taken:]))


def test_endless_epochs_of_fewer_rows_than_lanes_go_on(tmp_path):
    feed = DeltaFeed(write_numbers(tmp_path / "t", [3], 2))
    batches = feed.as_column_numpy(2, 0, 1, None, columns=COLUMNS)
    epochs = [sorted(real(next(batches)) + real(next(batches))) for _ in range(4)]
    assert epochs == [[0, 1, 2]] * 4


def test_a_row_group_that_is_read_in_chunks_is_gone_through_once(tmp_path, monkeypatch):
    opened: list[int] = []
    original = OpenRowGroup.__init__

    def counted(self, plan, file, layout, row_group, columns):
        opened.append(row_group)
        original(self, plan, file, layout, row_group, columns)

    monkeypatch.setattr(OpenRowGroup, "__init__", counted)
    feed = DeltaFeed(write_numbers(tmp_path / "t", [300], 100, 1000, "SNAPPY"), shuffle=False, memory_bytes=20_000)
    assert feed.plan.chunk_bytes * 10 <= feed.plan.row_group_bytes
    assert flat(map(real, feed.as_column_numpy(7, 0, 1))) == list(range(300))
    assert opened == [0, 1, 2]


@pytest.mark.parametrize(
    ("files", "group", "row_bytes", "compression", "memory_bytes", "bound"),
    [
        ([200] * 3, 100, 10_000, "SNAPPY", 1_000_000, 1_000_000),
        ([200] * 3, 100, 10_000, "UNCOMPRESSED", 1_000_000, 1_000_000),
        ([60], 20, 100_000, "SNAPPY", 1_000_000, 1_000_000),  # rows larger than a chunk
        ([60], 20, 100_000, "SNAPPY", 1000, 2 * 100_100),  # two rows at least
    ],
)
def test_what_is_read_stays_within_the_memory(tmp_path, files, group, row_bytes, compression, memory_bytes, bound):
    feed = DeltaFeed(write_numbers(tmp_path / "t", files, group, row_bytes, compression), memory_bytes=memory_bytes)
    if row_bytes == 100_000:
        assert feed.plan.order.lanes == max(1, memory_bytes // 200_000 // 4 * 4)
    assert feed.plan.reading_bytes() <= bound
    before = pa.total_allocated_bytes()
    most, seen = 0, []
    for columns, _ in feed.as_column_numpy(8, 0, 1, columns=["label", "image"]):
        seen += columns["label"].tolist()
        for number, image in zip(columns["label"], columns["image"], strict=True):
            assert image == bytes([number % 251]) * row_bytes
        most = max(most, pa.total_allocated_bytes() - before)
    assert sorted(seen) == list(range(sum(files)))
    # Whole row groups are 6 to 8 MB. Each half-read one, and each thread, has a chunk or a page of a row in hand.
    assert most < bound + (4 + 4) * 2 * max(row_bytes, feed.plan.chunk_bytes)


def test_what_a_rank_will_take_is_said_once_on_rank_0(tmp_path, capsys):
    feed = DeltaFeed(write_numbers(tmp_path / "t", [40], 10), memory_bytes=64 << 20)
    from lakelens.training.feed.read_options import ImageOutput

    feed.__dict__["stored_size"] = (256, 512)
    for rank in (1, 0, 0):
        feed._images(8, rank, 2, 1, ImageOutput(dtype="uint8", prefetch=1))
    (line,) = capsys.readouterr().err.splitlines()
    assert "each of 2 rank(s) takes 4 of the 8 rows of a batch, 5 steps an epoch" in line
    # Two that are decoded, one ready, two in use: 4 x 256 x 512 x 3 bytes each.
    assert "1 MiB of row groups (memory_bytes) and 7 MiB of images (global_batch_size, prefetch)" in line
