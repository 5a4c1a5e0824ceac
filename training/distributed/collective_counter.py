"""Counts the collectives that this rank has entered and left, so that the driver sees which rank waits for which.

The operations count, eagerly or in the traced graph; a Python thread reports the counts. While a call into C holds the
interpreter (a sort, unpickling, `sum(range(n))`), that thread cannot run, and its last report may be out of date. A
waiting rank therefore repeats its report with every sample, and counts as waiting only up to the last report.

Horovod 0.28.1 has its own stall inspector, but on Gloo it never finds anything: its list of ranks is reserved, not
filled (gloo_controller.cc, `global_ranks_.reserve(size_)`), so no rank is ever missing and
HOROVOD_STALL_SHUTDOWN_TIME_SECONDS does nothing.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..rank.frames import Kind
from ..rank.process_context import RankLink

SAMPLE_S = 1.0


class CollectiveCounter:
    """Two counters on the CPU that the traced graph increments, and a thread that reports them.

    Args:
        link: Where to report.
    """

    def __init__(self, link: RankLink) -> None:
        self._link = link
        with tf.init_scope(), tf.device("/CPU:0"):
            self._entered = tf.Variable(0, dtype=tf.int64, trainable=False, name="lakelens_entered")
            self._left = tf.Variable(0, dtype=tf.int64, trainable=False, name="lakelens_left")
        self._reported = (0, 0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._report, name="lakelens-stall", daemon=True)
        self._thread.start()
        atexit.register(self.close)

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

    def _report(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        # In this order a collective that begins in between counts as left, never as waited for.
        entered, left = int(self._entered.numpy()), int(self._left.numpy())
        if entered > left or (entered, left) != self._reported:
            self._reported = (entered, left)
            self._link.send(Kind.PROGRESS, {"entered": entered, "left": left})

    def close(self) -> None:
        """Reports once more and stops: the last sample may show a collective that this rank has left since."""
        if not self._thread.is_alive():
            return  # closed already, or in a fork, whose counts no longer change
        self._stopped.set()
        self._thread.join(timeout=2)
        if not self._thread.is_alive():
            self._sample()
