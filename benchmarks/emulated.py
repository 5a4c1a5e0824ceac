"""An emulated accelerator: a step is a sleep, so that the input pipeline alone decides how busy it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

_ROUNDS = 6


def take(batches: Iterator[Any], batch_size: int, rate: float | None = None) -> dict[str, Any]:
    """Takes every batch and times it from the first batch on."""
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
    """Finds by bisection the fastest accelerator that stays busy enough."""
    low = 0.0
    for _ in range(rounds):
        middle = (low + highest) / 2
        if busy_at(middle) >= busy:
            low = middle
        else:
            highest = middle
    return low
