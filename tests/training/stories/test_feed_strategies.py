"""One model from one feed, however it is trained: fit, a custom loop, replicas of a strategy, ranks of Horovod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from feed_tables import flat, write_layout

from lakelens import DeltaFeed

SCRIPT = Path(__file__).parents[1] / "strategies_script.py"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return write_layout(tmp_path_factory.mktemp("strategies") / "t", [50, 7, 34], row_group_rows=9)


@pytest.fixture(scope="module")
def trained(table) -> dict:
    command = [sys.executable, str(SCRIPT), str(table)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, **QUIET})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_same_model(ours: list, theirs: list) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-4, atol=1e-6)


@pytest.mark.tensorflow
def test_replicas_of_a_strategy_share_each_batch_and_lose_no_row(trained):
    assert [sorted(flat(parts)) for parts in trained["replicas"]] == [sorted(rows) for rows in trained["alone"]]
    assert all(len(parts) == 2 for parts in trained["replicas"])
    assert [[len(part) for part in parts] for parts in trained["replicas"][:-1]] == [[8, 8]] * 5


@pytest.mark.tensorflow
def test_fit_and_fit_under_a_strategy_train_the_same_model(trained):
    assert_same_model(trained["fit"], trained["mirrored"])


@pytest.mark.tensorflow
def test_fit_goes_on_with_the_next_epochs_order_where_one_iteration_ends(trained):
    assert_same_model(trained["fit"], trained["fit in one iteration"])


@pytest.mark.tensorflow
def test_a_custom_loop_trains_the_model_that_fit_trains(trained):
    assert_same_model(trained["fit"], trained["loop 1"])


@pytest.mark.tensorflow
@pytest.mark.parametrize("size", [2, 4])
def test_one_two_and_four_ranks_train_the_same_model(trained, size):
    assert_same_model(trained["loop 1"], trained[f"loop {size}"])


@pytest.mark.horovod
def test_ranks_of_horovod_find_their_share_by_themselves_and_train_the_same_model(two_ranks, table, trained):
    feed = DeltaFeed(table, seed=3)

    def main(folder):
        import sys

        import keras

        import lakelens.hvd as hvd

        sys.path.insert(0, folder)
        import strategies_script

        hvd.init()
        model = strategies_script.small_model()
        model.compile(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        return hvd.rank(), hvd.size(), strategies_script.fit(feed, model)

    for expected, (rank, size, weights) in enumerate(two_ranks.run(main, str(SCRIPT.parent))):
        assert (rank, size) == (expected, 2)
        assert_same_model(trained["fit"], weights)
