"""The global order: every row once, well mixed, the same batches at any number of ranks, resumable anywhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelens.training.feed.plan.epoch_order import GlobalOrder, RankBatches, permutation
from lakelens.training.feed.plan.feed_plan import GROUPS_PER_LANE, MAX_LANES, chunks_of, lanes_within

pytestmark = pytest.mark.unit

MIB = 1 << 20
layouts = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=5), min_size=1, max_size=8)
lane_counts = st.sampled_from([1, 2, 4, 8, 16])


def order_of(layout, lanes=4, seed=0, shuffle=True):
    rows = np.array([sum(groups) for groups in layout], dtype=np.int64)
    return GlobalOrder(rows, lanes if shuffle else 1, seed, shuffle)


def lane_of(order, layout, epoch, lane, position=0, parts=1):
    """Reads one lane as a reader does: row group by row group. Yields (file, row of the file)."""
    chunks = [[max(1, min(parts, rows)) for rows in groups] for groups in layout]
    starts = [np.cumsum([0, *groups]) for groups in layout]
    for part in order.epoch(epoch).slices(lane, position):
        file = part.file
        for taken in order.row_group_slices(epoch, file, layout[file], part.first, part.last, chunks[file]):
            assert len(taken.rows) > 0
            assert all(taken.first <= row < taken.last for row in taken.rows)
            assert taken.last - taken.first <= -(-layout[file][taken.row_group] // chunks[file][taken.row_group])
            for row in taken.rows:
                yield file, int(starts[file][taken.row_group] + row)


def sequence_of(order, layout, epoch, parts=1):
    """The whole epoch in global order: a list of (file, row)."""
    lanes = [list(lane_of(order, layout, epoch, lane, 0, parts)) for lane in range(order.lanes)]
    return [lanes[g % order.lanes][g // order.lanes] for g in range(order.rows)]


def stored_rows(layout):
    return [(file, row) for file, groups in enumerate(layout) for row in range(sum(groups))]


@given(layouts, lane_counts, st.integers(-(2**70), 2**70), st.integers(0, 3), st.booleans(), st.integers(1, 6))
def test_every_row_is_in_an_epoch_once_and_unshuffled_in_its_stored_place(layout, lanes, seed, epoch, shuffle, parts):
    order = order_of(layout, lanes, seed, shuffle)
    found = sequence_of(order, layout, epoch, parts)
    assert (sorted(found) if shuffle else found) == stored_rows(layout)


@given(st.integers(1, 1 << 40), st.integers(1, 5000), st.integers(1, 1 << 30), st.integers(1, 100))
def test_rows_of_any_size_stay_within_the_memory_or_are_two(memory, rows, row, groups):
    group = rows * row
    lanes, chunk = lanes_within(memory, group, groups * group, row)
    assert lanes & (lanes - 1) == 0
    assert lanes <= MAX_LANES
    parts = chunks_of(rows, group, chunk)
    most = max((c + 1) * rows // parts - c * rows // parts for c in range(parts)) * row
    held = min(GROUPS_PER_LANE * lanes * most, GROUPS_PER_LANE * groups * group)
    assert held <= max(memory, GROUPS_PER_LANE * row)


@given(st.integers(0, 300), st.integers(1, 50), st.integers(1, 7))
def test_global_batches_are_the_same_at_any_number_of_ranks(rows, global_batch_size, size):
    ranks = [RankBatches(rows, global_batch_size, rank, size) for rank in range(size)]
    assert len({batches.steps() for batches in ranks}) == 1
    for step in range(ranks[0].steps()):
        shares = [batches.share(step) for batches in ranks]
        parts = [share.real.tolist() for share in shares]
        assert {share.rows for share in shares} == {max(map(len, parts))}
        whole = list(range(step * global_batch_size, min((step + 1) * global_batch_size, rows)))
        assert sorted(itertools.chain.from_iterable(parts)) == whole


@given(layouts, lane_counts, st.integers(1, 50), st.integers(1, 7), st.data())
def test_an_epoch_resumes_at_any_row_with_exactly_the_rows_that_are_left(layout, lanes, global_batch_size, size, data):
    order = order_of(layout, lanes, seed=5)
    start = data.draw(st.integers(0, order.rows))
    whole = sequence_of(order, layout, 1)
    rest = []
    for lane in range(order.lanes):
        position = order.lane_position(lane, start)
        rest += list(lane_of(order, layout, 1, lane, position))
    assert sorted(rest) == sorted(whole[start:])
    ranks = [RankBatches(order.rows, global_batch_size, rank, size) for rank in range(size)]
    seen = [row for b in ranks for step in range(b.steps(start)) for row in b.share(step, start).real.tolist()]
    assert sorted(seen) == list(range(start, order.rows))


@given(st.integers(1, 2000), st.integers(1, 300), st.integers(1, 16), st.integers(1, 3))
def test_losses_averaged_over_ranks_equal_the_mean_over_the_rows_of_the_batch(rows, global_batch_size, size, replicas):
    losses = np.random.default_rng(0).random(rows)
    ranks = [RankBatches(rows, global_batch_size, rank, size, replicas) for rank in range(size)]
    for step in {0, ranks[0].steps() - 1}:
        shares = [batches.share(step) for batches in ranks]
        per_rank = [share.weight * losses[share.real].sum() / share.rows for share in shares]
        whole = losses[step * global_batch_size : (step + 1) * global_batch_size].mean()
        assert np.mean(per_rank) == pytest.approx(whole)
        assert all(share.rows % replicas == 0 for share in shares)


def test_rows_weigh_one_for_a_step_that_counts_real_rows_itself():
    assert RankBatches(100, 10, 0, 4).share(0).weight == pytest.approx(4 * 3 / 10)
    assert RankBatches(100, 10, 0, 4, equal_weights=True).share(0).weight == 1.0


def test_a_rank_that_divides_the_lanes_reads_its_own_lanes_only():
    batches = RankBatches(1000, 30, rank=3, size=4)
    lanes = {g % 16 for step in range(batches.steps()) for g in batches.share(step).real.tolist()}
    assert lanes == {3, 7, 11, 15}


def test_epochs_and_seeds_have_orders_of_their_own():
    layout = [[30, 20], [50]]
    orders = {tuple(sequence_of(order_of(layout, seed=seed), layout, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_permutations_do_not_change_between_releases():
    # A saved position means the same rows for ever: these numbers may never change.
    assert permutation(8, 0, 0).tolist() == [0, 7, 2, 5, 4, 6, 3, 1]
    assert permutation(8, 7, 3, 11).tolist() == [2, 0, 3, 4, 6, 7, 5, 1]


def test_lanes_of_one_row_group_share_its_permutation():
    order = GlobalOrder(np.array([100_000]), lanes=256)
    lanes = [next(order.row_group_slices(0, 0, [100_000], first, first + 10)).rows for first in (0, 500, 99_990)]
    assert len({id(rows.base) for rows in lanes}) == 1
    assert len(np.unique(lanes)) == 30


# --- mixing of tables that are stored sorted by class ----------------------------------------------------------------


def labels_in_order(files: int, groups: int, rows: int, classes: int, memory_bytes: int) -> np.ndarray:
    """The classes of an epoch's rows, of a table that is sorted by class, as a feed with its own lanes gives them."""
    group_bytes = rows * (32 << 10)
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
        (50, 4, 500, 10, 256 * MIB),  # 3 GiB
        (200, 4, 500, 1000, 1024 * MIB),
    ],
)
def test_rows_of_one_class_that_are_stored_together_do_not_come_together(files, groups, rows, classes, memory_bytes):
    labels = labels_in_order(files, groups, rows, classes, memory_bytes)
    for batch_size in (8, 32, 64, 256):
        assert clumping(labels, batch_size) < 1.6
    same = np.mean(labels[1:] == labels[:-1])
    assert same < 1.2 * np.sum((np.bincount(labels) / len(labels)) ** 2)
