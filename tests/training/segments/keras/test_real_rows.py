"""Training steps on two ranks with unequal real rows against plain Keras on the real rows, in this process."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = [pytest.mark.horovod, pytest.mark.tensorflow]

WIDTH = 4
# Real rows of the global batches, and of each rank in them: unequal shares, then a rank without rows.
BATCHES = [(8, (5, 3)), (1, (1, 0))]


def rows_of(batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gives images, labels and weights of a global batch."""
    random, count = np.random.default_rng(batch), BATCHES[batch][0]
    images = random.normal(size=(count, WIDTH)).astype("float32") * 2 + 3
    return images, images.sum(1, keepdims=True), random.uniform(1, 3, size=count).astype("float32")


def share_of(batch: int, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gives a rank's rows of a batch, filled up with black rows of weight 0 to those of the largest share."""
    counts = BATCHES[batch][1]
    first = sum(counts[:rank])
    parts = [part[first : first + counts[rank]] for part in rows_of(batch)]
    images, labels, weights = [
        np.concatenate([part, np.zeros((max(counts) - len(part), *part.shape[1:]), part.dtype)]) for part in parts
    ]
    return images, labels, weights


def model_with(layer, optimizer):
    import keras

    keras.utils.set_random_seed(5)
    dense = keras.layers.Dense(3, kernel_regularizer="l2")
    model = keras.Sequential([keras.Input((WIDTH,)), dense, layer, keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def weights_after(model, batches):
    for batch in batches:
        model.train_on_batch(*batch)
    return model.get_weights()


def on_two_ranks():
    import keras

    import lakelens.hvd as hvd
    from lakelens.training.segments.keras.validation import leave_out_padding

    hvd.init()
    shares = [share_of(batch, hvd.rank()) for batch in range(len(BATCHES))]
    found = {}
    for name, layer, batches in [
        ("synchronized", hvd.SyncBatchNormalization(), shares),
        ("a rank without rows", keras.layers.BatchNormalization(), shares[1:]),
    ]:
        model = model_with(layer, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)))
        leave_out_padding(model, hvd.size())
        found[name] = weights_after(model, batches)
    return found


@pytest.fixture(scope="module")
def ranks(two_ranks) -> list[dict]:
    return two_ranks.run(on_two_ranks)


def test_synchronized_normalization_trains_as_plain_keras_on_unequal_numbers_of_real_rows(ranks):
    import keras

    model = model_with(keras.layers.BatchNormalization(), keras.optimizers.SGD(0.05))
    expected = weights_after(model, map(rows_of, range(len(BATCHES))))
    for rank in ranks:
        for found, wanted in zip(rank["synchronized"], expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_rank_without_real_rows_keeps_its_moving_statistics(ranks):
    mean, variance = ranks[1]["a rank without rows"][4:6]
    np.testing.assert_array_equal(mean, np.zeros(3))
    np.testing.assert_array_equal(variance, np.ones(3))
    assert np.any(ranks[0]["a rank without rows"][4] != 0)


def test_a_value_of_a_whole_batch_among_the_labels_stays():
    import tensorflow as tf

    from lakelens.training.segments.keras.validation import without_padding

    images, labels, weights = rows_of(0)
    weights[2:] = 0
    batch = tf.data.Dataset.from_tensors((images, {"label": labels, "mixed": np.float32(0.3)}, weights))
    ((kept, given, _),) = without_padding(batch)
    np.testing.assert_array_equal(kept, images[:2])
    np.testing.assert_array_equal(given["label"], labels[:2])
    assert float(given["mixed"]) == pytest.approx(0.3)
