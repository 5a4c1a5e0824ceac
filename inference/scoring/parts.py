"""Divides a scoring into parts of bounded work: whole data files, one commit per part."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping

# A killed job repeats one part; each part costs about a second on top of its work.
TARGET_S = 30.0
# Size of a job's first part, before anything was measured: half a minute of MobileNetV2 on each slot.
_FIRST_PIXELS_PER_SLOT = 128 << 20
_MOST_FIRST_ROWS_PER_SLOT = 50_000
_GROWTH = 4.0


def first_rows(input_shape: tuple[int, int, int], slots: int) -> int:
    """Chooses the rows of a job's first part."""
    per_slot = _FIRST_PIXELS_PER_SLOT // (input_shape[0] * input_shape[1])
    return max(1, min(per_slot, _MOST_FIRST_ROWS_PER_SLOT)) * max(1, slots)


def next_rows(rows: int, seconds: float) -> int:
    """Chooses the rows of the next part, so that it takes about `TARGET_S`, by those of the last and its time."""
    factor = TARGET_S / max(seconds, 1e-3)
    return max(1, int(rows * min(_GROWTH, max(1 / _GROWTH, factor))))


def shuffled(rows_by_file: Mapping[str, int], order: random.Random) -> deque[str]:
    """Orders the files in an order specific to this job, so that concurrent jobs rarely work on the same file."""
    files = sorted(file for file, rows in rows_by_file.items() if rows > 0)
    order.shuffle(files)
    return deque(files)


def take(files: deque[str], rows_by_file: Mapping[str, int], most_rows: int) -> list[str]:
    """Takes the first files: at least one, and more up to `most_rows` rows."""
    taken = [files.popleft()]
    rows = rows_by_file[taken[0]]
    while files and rows + rows_by_file[files[0]] <= most_rows:
        taken.append(files.popleft())
        rows += rows_by_file[taken[-1]]
    return taken
