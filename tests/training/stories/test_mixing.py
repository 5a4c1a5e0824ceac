"""How well rows are mixed, on tables that are stored sorted by class."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.training.feed.plan.epoch_order import GlobalOrder, spread
from lakelens.training.feed.plan.feed_plan import lanes_within

pytestmark = pytest.mark.unit

MIB = 1 << 20
ROW_BYTES = 32 << 10


def labels_in_order(files: int, groups: int, rows: int, classes: int, memory_bytes: int) -> np.ndarray:
    """The classes of an epoch's rows, of a table that is sorted by class, as a feed with its own lanes gives them."""
    group_bytes = rows * ROW_BYTES
    lanes, chunk_bytes = lanes_within(memory_bytes, group_bytes, files * groups * group_bytes)
    chunks = [max(1, -(-group_bytes // chunk_bytes))] * groups
    order = GlobalOrder(np.full(files, groups * rows), lanes, seed=1)
    stored = np.empty(order.rows, dtype=np.int64)
    for lane in range(lanes):
        for part in order.epoch(0).slices(lane):
            position = part.position
            for taken in order.row_group_slices(0, part.file, [rows] * groups, part.first, part.last, chunks):
                place = position + np.arange(len(taken.rows))
                stored[place * lanes + lane] = (part.file * groups + taken.row_group) * rows + taken.rows
                position += len(taken.rows)
    return stored * classes // order.rows


def clumping(labels: np.ndarray, batch_size: int) -> float:
    """Variance of the classes' counts in batches, over that of a uniform shuffle (hypergeometric): 1 is uniform."""
    rows = len(labels) // batch_size * batch_size
    share = np.bincount(labels) / len(labels)
    counts = np.stack([np.bincount(batch, minlength=len(share)) for batch in labels[:rows].reshape(-1, batch_size)])
    uniform = batch_size * share * (1 - share) * (len(labels) - batch_size) / (len(labels) - 1)
    return float(((counts - batch_size * share) ** 2).mean(axis=0).sum() / uniform.sum())


@pytest.mark.parametrize(
    ("files", "groups", "rows", "classes", "memory_bytes"),
    [
        (10, 2, 250, 10, 1024 * MIB),  # all of it fits into the memory
        (13, 2, 1000, 256, 1024 * MIB),  # a fifth more than fits
        (200, 4, 500, 10, 1024 * MIB),  # 12 GiB
        (200, 4, 500, 1000, 1024 * MIB),
    ],
)
def test_rows_of_one_class_that_are_stored_together_do_not_come_together(files, groups, rows, classes, memory_bytes):
    labels = labels_in_order(files, groups, rows, classes, memory_bytes)
    for batch_size in (8, 32, 64, 256):
        assert clumping(labels, batch_size) < 1.6
    same = np.mean(labels[1:] == labels[:-1])
    assert same < 1.2 * np.sum((np.bincount(labels) / len(labels)) ** 2)


def test_the_measure_of_mixing_knows_clumps_and_uniform_shuffles():
    labels = np.repeat(np.arange(10), 500)
    assert clumping(labels, 50) > 40
    assert clumping(np.random.default_rng(0).permutation(labels), 50) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_neighbouring_lanes_lie_far_apart(count):
    order = spread(count)
    assert sorted(order.tolist()) == list(range(count))
    if count > 3:
        assert np.abs(np.diff(np.argsort(order))).min() >= count // 4
