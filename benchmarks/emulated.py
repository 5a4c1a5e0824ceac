"""An emulated accelerator: a step is a sleep, so that the input pipeline alone decides how busy it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

_ROUNDS = 6


def take(batches: Iterator[Any], batch_size: int, rate: float | None = None) -> dict[str, Any]:
    """Takes every batch and times it from the first batch on.

    Args:
        batches: Gives [rows, height, width, 3] arrays or tensors.
        batch_size: Rows of a full batch.
        rate: Images a second of the emulated accelerator, which sleeps rows / rate seconds on each batch; None: none.

    Returns:
        rows, first_s (seconds to the first batch), images_s (rows after the first batch by time after it), and busy
        (the share of that time that the accelerator slept).
    """
    started = time.perf_counter()
    first_at = started
    rows = first_rows = 0
    asked_s = 0.0
    checksum = 0
    for number, images in enumerate(batches):
        count = int(images.shape[0])
        checksum += int(memoryview(images)[0, 0, 0, 0])  # TensorFlow's slicing would cost more than some contenders
        if number == 0:
            first_at, first_rows = time.perf_counter(), count
        elif rate is not None:
            step_s = count / rate
            time.sleep(step_s)
            asked_s += step_s
        rows += count
    after_s = max(time.perf_counter() - first_at, 1e-9)
    return {
        "rows": rows,
        "batch_size": batch_size,
        "checksum": checksum,
        "first_s": first_at - started,
        "images_s": (rows - first_rows) / after_s,
        "busy": asked_s / after_s,
    }


def highest_busy_rate(busy_at: Callable[[float], float], highest: float, busy: float, rounds: int = _ROUNDS) -> float:
    """Finds by bisection the fastest accelerator that stays busy enough.

    Args:
        busy_at: Measures the busy share at a rate in images a second.
        highest: A rate that is surely too high.
        busy: The share to keep.
        rounds: How often to halve the interval: 6 leaves 1.6 % of `highest`.

    Returns:
        The highest rate that was seen to stay busy; 0 if none did.
    """
    low = 0.0
    for _ in range(rounds):
        middle = (low + highest) / 2
        if busy_at(middle) >= busy:
            low = middle
        else:
            highest = middle
    return low
