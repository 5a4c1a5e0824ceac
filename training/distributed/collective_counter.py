"""Counts the collectives that this rank has entered and left, eagerly or in the traced graph.

Horovod 0.28.1 has its own stall inspector, but on Gloo it never finds anything: its list of ranks is reserved, not
filled (gloo_controller.cc, `global_ranks_.reserve(size_)`), so no rank is ever missing and
HOROVOD_STALL_SHUTDOWN_TIME_SECONDS does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..rank.collective_reports import CollectiveReports
from ..rank.process_context import RankLink


class CollectiveCounter:
    """Two counters on the CPU that the traced graph increments."""

    def __init__(self, link: RankLink) -> None:
        with tf.init_scope(), tf.device("/CPU:0"):
            self._entered = tf.Variable(0, dtype=tf.int64, trainable=False, name="lakelens_entered")
            self._left = tf.Variable(0, dtype=tf.int64, trainable=False, name="lakelens_left")
        self._reports = CollectiveReports(link, lambda: (int(self._entered.numpy()), int(self._left.numpy())))

    def around(self, collective: Callable[[], Any], inputs: Sequence[Any]) -> Any:
        """Calls a function that makes one collective operation of `inputs`, and counts it, eagerly or in a graph."""
        if tf.executing_eagerly():
            self._entered.assign_add(1, read_value=False)
            try:
                return collective()
            finally:
                self._left.assign_add(1, read_value=False)
        # A rank enters when its tensors are ready: while it computes them it must not count as waiting.
        with tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True)):
            entered = self._entered.assign_add(1, read_value=False)
        with tf.control_dependencies([entered]):
            result = collective()
        with tf.control_dependencies(tf.nest.flatten(result, expand_composites=True)):
            self._left.assign_add(1, read_value=False)
        return result

    def close(self) -> None:
        """Reports once more and stops."""
        self._reports.close()
