"""Batch memory is used again, and never while anybody can still see it."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.training.feed.rank_batches import ALIGNMENT, BatchBuffers


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.unit
def test_memory_comes_back_when_the_array_has_gone():
    buffers = BatchBuffers((4, 3, 5, 3), "float32")
    first = buffers.take()
    assert first.shape == (4, 3, 5, 3)
    assert first.dtype == np.float32
    assert address(first) % ALIGNMENT == 0
    used = address(first)
    second = buffers.take()
    assert address(second) != used
    del first
    assert address(buffers.take()) == used


@pytest.mark.unit
def test_memory_is_kept_from_others_while_a_view_of_it_lives():
    buffers = BatchBuffers((8, 2), "uint8")
    array = buffers.take()
    array[...] = 7
    view = array[2:4][:, ::-1].reshape(-1)
    del array
    others = [buffers.take() for _ in range(3)]
    for other in others:
        other[...] = 0
    assert view.tolist() == [7] * 4


@pytest.mark.tensorflow
def test_memory_is_kept_from_others_while_a_tensor_of_it_lives(tmp_path):
    from feed_tables import write_layout

    from lakelens import DeltaFeed

    feed = DeltaFeed(write_layout(tmp_path / "t", [40], form="png"), shuffle=False)
    for dtype in ("uint8", "float32"):
        kept = list(feed.as_dataset(4, dtype=dtype))
        again = list(feed.as_numpy(4, dtype=dtype))
        for (images, labels, _), (shown, _, _) in zip(kept, again, strict=True):
            np.testing.assert_array_equal(images.numpy(), shown)
            assert labels.numpy().tolist() == sorted(labels.numpy().tolist())
