"""Batch memory is used again, and never while anybody can still see it."""

from __future__ import annotations

import numpy as np
import pytest

from lakelens.training.feed.rank_batches import ALIGNMENT, BatchBuffers


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.unit
def test_memory_comes_back_when_the_last_view_of_it_has_gone():
    buffers = BatchBuffers((8, 2), "float32")
    array = buffers.take()
    used = address(array)
    assert used % ALIGNMENT == 0
    view = array[2:4][:, ::-1]
    del array
    others = [buffers.take() for _ in range(3)]
    assert used not in map(address, others)
    del view
    assert address(buffers.take()) == used


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
