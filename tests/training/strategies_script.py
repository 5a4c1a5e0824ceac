"""Trains one small model in every way that TensorFlow feeds one; a process of its own, with two devices.

Prints one JSON object: for each way the weights it ended with, and the rows of each batch that two replicas got.
"""

from __future__ import annotations

import json
import sys

import keras
import numpy as np
import tensorflow as tf

from lakelens import DeltaFeed

BATCH, EPOCHS, CLASSES = 16, 2, 7


def small_model() -> keras.Model:
    """The same weights each time."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((12, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(CLASSES)])
    model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def scaled(images, labels):
    return images / 255.0, labels % CLASSES


def fit(feed: DeltaFeed, model: keras.Model, replicas: int = 1) -> list:
    """Trains as any Keras user would; in a rank of Horovod the feed finds its share by itself."""
    model.fit(feed.as_dataset(BATCH, preprocess=scaled, replicas=replicas), epochs=EPOCHS, verbose=0)
    return [weights.tolist() for weights in model.get_weights()]


def fit_in_one_iteration(feed: DeltaFeed, model: keras.Model) -> list:
    dataset = feed.as_dataset(BATCH, epochs=EPOCHS, preprocess=scaled)
    model.fit(dataset, steps_per_epoch=feed.steps_per_epoch(BATCH), epochs=EPOCHS, verbose=0)
    return [weights.tolist() for weights in model.get_weights()]


def loop(feed: DeltaFeed, size: int) -> list:
    """A custom loop that takes the place of `size` ranks: the mean of their gradients, each from its own dataset."""
    model = small_model()
    ranks = [feed.as_dataset(BATCH, rank, size, EPOCHS, preprocess=scaled) for rank in range(size)]
    for parts in zip(*ranks, strict=True):
        gradients = []
        for images, labels, weights in parts:
            with tf.GradientTape() as tape:
                losses = keras.losses.sparse_categorical_crossentropy(labels, model(images), from_logits=True)
                loss = tf.reduce_sum(losses * weights) / len(weights)
            gradients.append(tape.gradient(loss, model.trainable_variables))
        means = [sum(of_ranks) / size for of_ranks in zip(*gradients, strict=True)]
        model.optimizer.apply(means, model.trainable_variables)
    return [weights.tolist() for weights in model.get_weights()]


def replica_batches(feed: DeltaFeed, strategy: tf.distribute.Strategy) -> list:
    dataset = strategy.experimental_distribute_dataset(feed.as_dataset(BATCH, 0, 1, replicas=2))
    return [
        [part.numpy()[weight.numpy() > 0].tolist() for part, weight in zip(labels.values, weights.values, strict=True)]
        for _, labels, weights in dataset
    ]


def main(table: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    feed = DeltaFeed(table, seed=3)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = {"replicas": replica_batches(feed, strategy), "fit": fit(feed, small_model())}
    found["fit in one iteration"] = fit_in_one_iteration(feed, small_model())
    found |= {f"loop {size}": loop(feed, size) for size in (1, 2, 4)}
    with strategy.scope():
        model = small_model()
    found["mirrored"] = fit(feed, model, replicas=2)
    found["alone"] = [np.asarray(y)[np.asarray(w) > 0].tolist() for _, y, w in feed.as_numpy(BATCH, 0, 1)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
