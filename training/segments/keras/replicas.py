"""Replicas of the model on several devices of one process: tf.distribute's MirroredStrategy."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from ....errors import LaunchError


class Replicas:
    """The devices of this process that share each batch.

    One device needs no strategy. Several are this process's GPUs, or logical CPUs where it sees no GPU.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._strategy = _mirrored(count) if count > 1 else None

    def scope(self) -> AbstractContextManager[Any]:
        """Gives variables created inside a copy on each device."""
        return self._strategy.scope() if self._strategy is not None else contextlib.nullcontext()

    def shared(self, dataset: tf.data.Dataset) -> Any:
        """Distributes the rows of each batch to the devices."""
        if self._strategy is None:
            return dataset
        return self._strategy.experimental_distribute_dataset(dataset)


def _mirrored(count: int) -> tf.distribute.Strategy:
    gpus = tf.config.list_physical_devices("GPU")
    try:
        if not gpus:
            (cpu, *_) = tf.config.list_physical_devices("CPU")
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
            return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(count)])
        if len(gpus) < count:
            raise LaunchError(f"strategy mirrored: {count} slots, and TensorFlow sees {len(gpus)} GPUs in this process")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise LaunchError(
            f"strategy mirrored sets up devices, and this process has used TensorFlow before ({error}); train in a "
            "separate process"
        ) from error
    return tf.distribute.MirroredStrategy([f"GPU:{number}" for number in range(count)])
