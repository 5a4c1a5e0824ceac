"""Iterating over a dataset again: the orders of further epochs, the same on all ranks, unless a start pins them."""

from __future__ import annotations

import time

import numpy as np
import pytest
from feed_tables import flat, labels_of, real

from lakelens import DeltaFeed

pytestmark = pytest.mark.tensorflow

ROWS, BATCH, STEPS = 91, 16, 6


@pytest.fixture(scope="module")
def feed(uneven) -> DeltaFeed:
    return DeltaFeed(uneven, seed=3)


@pytest.fixture(scope="module")
def batches(feed) -> list[list[int]]:
    """The rows of the batches of the first six epochs."""
    return labels_of(feed.as_numpy(BATCH, epochs=6))


@pytest.mark.parametrize("epochs", [1, 2])
def test_iterating_again_goes_on_with_the_next_epochs_order(feed, batches, epochs):
    dataset = feed.as_dataset(BATCH, epochs=epochs)
    assert flat(labels_of(dataset) for _ in range(6 // epochs)) == batches
    assert dataset.cardinality().numpy() == epochs * STEPS
    assert labels_of(feed.as_dataset(BATCH, epochs=epochs).repeat(2)) == batches[: 2 * epochs * STEPS]


def test_an_epoch_that_was_not_taken_to_its_end_is_begun_again(feed, batches):
    dataset = feed.as_dataset(BATCH, prefetch=8)  # more than an epoch
    for _ in range(2):
        assert real(next(iter(dataset))) == batches[0]
    assert labels_of(dataset.take(STEPS - 1)) == batches[: STEPS - 1]
    assert labels_of(dataset) == batches[:STEPS]
    endless = feed.as_dataset(BATCH, epochs=None)
    assert labels_of(endless.take(2 * STEPS + 1)) == batches[: 2 * STEPS + 1]
    assert labels_of(endless.take(STEPS)) == batches[2 * STEPS : 3 * STEPS]


def test_tensorflow_reads_no_batch_ahead_that_would_count_as_taken(feed):
    dataset = feed.as_dataset(ROWS // 2 + 1)  # two batches: the second ends the epoch
    iterator = iter(dataset)
    first = real(next(iterator))
    time.sleep(0.2)
    assert real(next(iter(dataset))) == first


def test_ranks_agree_on_the_epoch_though_one_has_looked_at_its_first_batch(feed):
    ranks = [feed.as_dataset(BATCH, rank, 2) for rank in range(2)]
    next(iter(ranks[0]))
    for epoch in range(3):
        parts = [labels_of(dataset) for dataset in ranks]
        assert sorted(flat(flat(parts))) == list(range(ROWS))
        together = [sorted(a + b) for a, b in zip(*parts, strict=True)]
        start = feed.position(epoch * STEPS, BATCH)
        assert together == [sorted(rows) for rows in labels_of(feed.as_numpy(BATCH, start=start))]


@pytest.mark.parametrize("steps", [0, 2 * STEPS + 4])
def test_a_start_pins_where_every_iteration_begins(feed, batches, steps):
    dataset = feed.as_dataset(BATCH, start=feed.position(steps, BATCH))
    rest = batches[steps : (steps // STEPS + 1) * STEPS]
    assert labels_of(dataset) == rest
    assert labels_of(dataset) == rest
    assert dataset.cardinality().numpy() == len(rest)


def test_fit_sees_another_order_in_each_epoch_and_validation_the_stored_one(feed, batches):
    import keras
    import tensorflow as tf

    seen: dict[bool, list[int]] = {True: [], False: []}

    class Recorder(keras.Model):
        def call(self, images, training=False):
            return tf.zeros((tf.shape(images)[0], 1)) + tf.reduce_mean(images) * 0

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            seen[training] += np.asarray(y)[np.asarray(sample_weight) > 0].tolist()
            return tf.reduce_sum(y_pred)

    model = Recorder()
    model.compile(keras.optimizers.SGD(), "mse", run_eagerly=True)
    stored = DeltaFeed(feed.location, shuffle=False)
    model.fit(feed.as_dataset(BATCH), validation_data=stored.as_dataset(BATCH), epochs=3, verbose=0)
    assert seen[True] == flat(batches[: 3 * STEPS])
    assert seen[False] == 3 * flat(labels_of(stored.as_numpy(BATCH)))


def small_model():
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(ROWS, "softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def test_keras_measures_and_trains_on_a_dataset_of_one_process_as_on_its_rows(feed):
    ours, theirs = small_model(), small_model()
    plain = [batch[:2] for batch in feed.as_numpy(BATCH, dtype="float32")]
    images, labels = (np.concatenate(parts) for parts in zip(*plain, strict=True))
    trained = ours.fit(feed.as_dataset(BATCH), validation_data=feed.as_dataset(BATCH), verbose=0).history
    for batch in plain:
        theirs.train_on_batch(*batch)
    for weights, wanted in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(weights, wanted, rtol=1e-5, atol=1e-7)
    wanted = theirs.evaluate(images, labels, verbose=0, return_dict=True)
    assert ours.evaluate(feed.as_dataset(BATCH), verbose=0, return_dict=True) == pytest.approx(wanted, rel=1e-5)
    assert {name: trained[f"val_{name}"][0] for name in wanted} == pytest.approx(wanted, rel=1e-5)
