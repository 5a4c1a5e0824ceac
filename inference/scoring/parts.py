"""How a scoring is cut into parts of bounded work, each of which is committed by itself."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

# What a killed job has to repeat is one part; what each costs beside its work is about a second.
TARGET_S = 30.0
# The first part of a job, before anything was measured: 8 tasks' worth for each slot.
_FIRST_PIXELS_PER_SLOT = 32 << 20
_MOST_FIRST_ROWS_PER_SLOT = 50_000
_GROWTH = 4.0


@dataclass(frozen=True)
class Piece:
    """Rows of one data file that are to be scored: all that are to be, or one of several shares of them.

    Attributes:
        file: Where the file is; empty for the whole version, where its files are not known.
        rows: How many they are; of a share, about.
        share: Number of the share, from 0.
        shares: Into how many shares the file is cut.
    """

    file: str
    rows: int
    share: int = 0
    shares: int = 1


def first_rows(input_shape: tuple[int, int, int], slots: int) -> int:
    """Chooses the rows of a job's first part."""
    per_slot = _FIRST_PIXELS_PER_SLOT // (input_shape[0] * input_shape[1])
    return max(1, min(per_slot, _MOST_FIRST_ROWS_PER_SLOT)) * max(1, slots)


def next_rows(rows: int, seconds: float) -> int:
    """Chooses the rows of the next part, so that it takes about `TARGET_S`, by those of the last and its time."""
    factor = TARGET_S / max(seconds, 1e-3)
    return max(1, int(rows * min(_GROWTH, max(1 / _GROWTH, factor))))


def cut(rows_by_file: Mapping[str, int], most_rows: int, order: random.Random) -> deque[Piece]:
    """Cuts files into pieces of at most about `most_rows` rows.

    The files come in an order of this job's own, so that two jobs at once are rarely at work on the same rows; the
    shares of a file follow each other, because each part that holds some of them reads all of the file.
    """
    files = sorted(file for file, rows in rows_by_file.items() if rows > 0)
    order.shuffle(files)
    pieces: deque[Piece] = deque()
    for file in files:
        rows = rows_by_file[file]
        shares = -(-rows // most_rows)
        numbers = list(range(shares))
        order.shuffle(numbers)
        pieces.extend(Piece(file, -(-rows // shares), share, shares) for share in numbers)
    return pieces


def take(pieces: deque[Piece], most_rows: int) -> list[Piece]:
    """Takes the first pieces off, at least one and of the following those that keep within `most_rows` rows."""
    taken = [pieces.popleft()]
    rows = taken[0].rows
    while pieces and rows + pieces[0].rows <= most_rows:
        taken.append(pieces.popleft())
        rows += taken[-1].rows
    return taken
