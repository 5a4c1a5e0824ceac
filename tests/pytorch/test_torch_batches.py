"""Rules of `DeltaFeed.as_torch`: tensors of the feed's rows, and states that other numbers of ranks resume from."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from feed_tables import HEIGHT, WIDTH, flat, real, write_layout

from lakelens import DeltaFeed
from lakelens.errors import InvalidArgumentError

pytestmark = pytest.mark.torch
ROWS, BATCH = 91, 16


@pytest.fixture(scope="module")
def feed(tmp_path_factory) -> DeltaFeed:
    return DeltaFeed(write_layout(tmp_path_factory.mktemp("feed") / "t", [50, 7, 1, 33], row_group_rows=10), seed=3)


def rows_of(batches) -> list[list[int]]:
    return [real(batch) for batch in batches]


def merged(feed: DeltaFeed, size: int, batch_size: int, state: dict | None = None, epochs: int = 1) -> list[list[int]]:
    """The rows of each global batch, whose ranks are read one after the other."""
    ranks = [feed.as_torch(batch_size, rank, size, epochs) for rank in range(size)]
    for rank in ranks if state is not None else ():
        rank.load_state_dict(state)
    return [sorted(flat(parts)) for parts in zip(*map(rows_of, ranks), strict=True)]


def test_batches_are_those_of_as_numpy_with_images_nchw_in_channels_last_memory_and_labels_int64(feed):
    import torch

    for mine, theirs in zip(feed.as_torch(BATCH, 1, 2), feed.as_numpy(BATCH, 1, 2, dtype="uint8"), strict=True):
        images, labels, weights = mine
        assert (images.dtype, labels.dtype, weights.dtype) == (torch.uint8, torch.int64, torch.float32)
        assert images.is_contiguous(memory_format=torch.channels_last)
        for given, expected in zip((images.permute(0, 2, 3, 1), labels, weights), theirs, strict=True):
            assert (given.numpy() == expected).all()
    assert next(iter(feed.as_torch(BATCH, layout="NHWC")))[0].shape == (BATCH, HEIGHT, WIDTH, 3)


def test_each_iteration_is_the_next_epoch_and_one_left_early_begins_again(feed):
    batches = feed.as_torch(BATCH)
    peeked = real(next(iter(batches)))
    first, second = rows_of(batches), rows_of(batches)
    assert peeked == first[0]
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(ROWS))
    assert first != second
    assert first + second == rows_of(feed.as_torch(BATCH, epochs=2))


@pytest.mark.parametrize("steps", [0, 6, 8])
def test_a_state_resumes_with_exactly_the_rows_that_are_left(feed, steps):
    whole = rows_of(feed.as_torch(BATCH, epochs=3))
    batches = feed.as_torch(BATCH, epochs=3)
    running = iter(batches)
    taken = [real(next(running)) for _ in range(steps)]
    state = json.loads(json.dumps(batches.state_dict()))
    assert taken == whole[:steps]
    assert state == feed.position(steps, BATCH)
    resumed = feed.as_torch(BATCH, epochs=3 - state["epoch"])
    resumed.load_state_dict(state)
    assert len(resumed) == len(whole) - steps
    assert rows_of(resumed) == whole[steps:]


def test_a_state_resumes_at_other_numbers_of_ranks_with_the_same_batches_and_at_another_size_with_every_row_once(feed):
    ranks = [feed.as_torch(BATCH, rank, 2, epochs=2) for rank in range(2)]
    running = [iter(rank) for rank in ranks]
    seen = [sorted(flat(real(next(rank)) for rank in running)) for _ in range(4)]
    state, other = (rank.state_dict() for rank in ranks)
    assert state == other
    assert seen + merged(feed, 3, BATCH, state, epochs=2) == merged(feed, 1, BATCH, epochs=2)
    assert sorted(flat(seen + merged(feed, 1, 5, state))) == list(range(ROWS))


def test_preprocess_gets_tensors(feed):
    import torch

    images, labels, _ = next(iter(feed.as_torch(BATCH, preprocess=lambda images, labels: (images / 255, labels + 1))))
    assert images.dtype == torch.float32
    assert float(images.max()) <= 1.0
    assert sorted(labels.tolist()) == sorted(label + 1 for label in real(next(iter(feed.as_torch(BATCH)))))


OTHER_RANK = """
import sys
import torch.distributed as dist

dist.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=2)
dist.barrier()
"""


def test_the_ranks_are_those_of_the_process_group(feed, tmp_path):
    import torch.distributed as dist

    store = (tmp_path / "store").as_uri()
    with subprocess.Popen([sys.executable, "-c", OTHER_RANK, store]) as other:
        dist.init_process_group("gloo", init_method=store, rank=1, world_size=2)
        try:
            assert rows_of(feed.as_torch(BATCH)) == rows_of(feed.as_torch(BATCH, 1, 2))
            dist.barrier()
        finally:
            dist.destroy_process_group()
            other.kill()


def test_an_unknown_layout_and_pinned_memory_without_a_gpu_are_refused(feed):
    with pytest.raises(InvalidArgumentError, match="layout='HWC': it is one of NCHW, NHWC"):
        feed.as_torch(BATCH, layout="HWC")
    with pytest.raises(InvalidArgumentError, match="pin_memory=True: PyTorch finds no CUDA GPU"):
        feed.as_torch(BATCH, pin_memory=True)
