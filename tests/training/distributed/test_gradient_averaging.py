"""When gradients travel, and that it does not change their sum: groups, and real ranks that make gradients late."""

from __future__ import annotations

import pickle

import pytest
from leftovers import leaves_nothing

from lakelens.errors import LaunchError, RankFailedError
from lakelens.training.runner.runner import HorovodRunner

pytestmark = [pytest.mark.horovod, pytest.mark.usefixtures("functions_travel_by_value")]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([5, 5, 5, 5], [[3, 2], [1, 0]]),
        ([1, 20, 20, 20, 20], [[4, 3], [2, 1, 0]]),
        ([1], [[0]]),
    ],
)
def test_groups_are_full_from_so_many_bytes_on_and_no_member_travels_alone(sizes, expected):
    from lakelens.training.distributed.gradient_averaging import group_by_bytes

    assert group_by_bytes({index: sizes[index] for index in reversed(range(len(sizes)))}, 10) == expected


def late_gradients(place):
    """Combines four gradients, two of them late, and keeps what each rank saw; rank 1 leaves before the others."""
    import pickle
    import threading
    import time
    from pathlib import Path

    import numpy as np
    import tensorflow as tf

    import lakelens.hvd as hvd
    from lakelens.training.distributed.gradient_averaging import GradientSettings, combine

    # A thread for each operation that sleeps.
    tf.config.threading.set_inter_op_parallelism_threads(8)
    hvd.init()
    arrived = threading.Event()

    def wait():
        return np.float32(arrived.wait(30))

    def arrive(_):
        arrived.set()
        return np.float32(0)

    @tf.function
    def early_ones_first():
        late = tf.numpy_function(wait, [], tf.float32, stateful=False)
        late.set_shape([])
        shape = [300_000]
        combined = combine(
            [tf.fill(shape, late), tf.fill(shape, late), tf.ones(shape), tf.ones(shape)], GradientSettings(), "early"
        )
        seen = tf.numpy_function(arrive, [combined[-1][0]], tf.float32, stateful=False)
        return combined[0][0] + seen

    found = {"came while others were waited for": hvd.allgather_object(float(early_ones_first()))}
    rng = np.random.default_rng(hvd.rank())
    values = [tf.constant(rng.normal(size=300_007).astype("float32")) for _ in range(6)]

    def after(value, seconds):
        if not seconds:
            return value

        def sleep():
            time.sleep(seconds)
            return np.float32(1)

        return value * tf.ensure_shape(tf.numpy_function(sleep, [], tf.float32, stateful=False), [])

    @tf.function
    def combined(sleeps):
        return combine(
            [after(value, seconds) for value, seconds in zip(values, sleeps, strict=True)], GradientSettings(), "order"
        )

    sums = [
        b"".join(tensor.numpy().tobytes() for tensor in combined(sleeps))
        for sleeps in ((0.0,) * 6, (0.0,) * 6, (1.0, 1.0, 0.5, 0.5, 0.0, 0.0), (0.0, 0.0, 0.5, 0.5, 1.0, 1.0))
    ]
    found["sums"] = len(set(sums))
    found["sums of all ranks"] = len(set(hvd.allgather_object(sums[0])))
    if hvd.rank() == 1:
        Path(place).write_bytes(pickle.dumps(found))
        return
    hvd.barrier()


def test_gradients_travel_early_without_a_changed_bit_and_a_rank_that_returns_while_others_wait_is_to_blame(tmp_path):
    with leaves_nothing() as watch:
        # What is ready within such a long cycle would be put together, were that not off for groups.
        env = {**watch.env, "TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_CYCLE_TIME": "100"}
        with pytest.raises(RankFailedError, match="returned from the training function while other") as caught:
            HorovodRunner(np=-3, env=env).run(late_gradients, place=str(tmp_path / "found"))
    assert (caught.value.rank, caught.value.reason) == (1, "left_early")
    found = pickle.loads((tmp_path / "found").read_bytes())
    assert found == {"came while others were waited for": [1.0, 1.0, 1.0], "sums": 1, "sums of all ranks": 1}


def test_a_rank_joins_its_world_once(monkeypatch):
    from lakelens.training.distributed import membership

    monkeypatch.setattr(membership._World, "initialized", False)
    monkeypatch.setattr(membership._World, "left", True)
    with pytest.raises(LaunchError, match="a rank joins its world once"):
        membership.init()
