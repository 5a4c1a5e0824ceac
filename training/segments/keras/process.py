"""Settings of Keras and TensorFlow that belong to the process, not to one training."""

from __future__ import annotations

import os
from collections.abc import Callable

import keras
import tensorflow as tf

from ...feed.read_options import available_cores


def remember_settings() -> Callable[[], None]:
    """Remembers the global settings; the result restores them, frees memory and forgets graphs, names and seeds."""
    dtype_policy, floatx, epsilon = keras.config.dtype_policy(), keras.config.floatx(), keras.config.epsilon()
    image_data_format, eager = keras.config.image_data_format(), tf.config.functions_run_eagerly()

    def restore() -> None:
        keras.utils.clear_session(free_memory=True)
        keras.config.set_floatx(floatx)
        keras.config.set_epsilon(epsilon)
        keras.config.set_image_data_format(image_data_format)
        keras.config.set_dtype_policy(dtype_policy)
        tf.config.run_functions_eagerly(eager)

    return restore


def share_cores(local_size: int) -> None:
    """Gives each rank its share of the machine's cores; by default TensorFlow uses all of them in each rank."""
    if local_size == 1 or os.environ.get("TF_NUM_INTRAOP_THREADS"):
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(max(1, available_cores() // local_size))
    except RuntimeError:
        return  # TensorFlow is already in use, as in a notebook
