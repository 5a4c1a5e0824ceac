"""Stops an ingest that would remove most stored rows, or all rows of a class; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from ...errors import IngestLossError
from ...results import some_of

_SHARE = 0.5
# A class of fewer rows may well come and go.
_SMALLEST_CLASS = 20
_MOST_NAMED = 5
FILE_GONE = "the source no longer holds their files"


class LossGuard:
    """What one ingest, or all batches of one stream, take out of a table."""

    def __init__(self, table: str, *, allowed: bool) -> None:
        self._table = table
        self._allowed = allowed
        self._stored: Mapping[str, int] | None = None
        self._lost: Counter[tuple[str, str]] = Counter()

    def add(self, lost: Mapping[tuple[str, str], int], count_stored: Callable[[], Mapping[str, int]]) -> None:
        """Adds rows that are about to be taken out."""
        self._lost.update(lost)
        found = self._too_many(count_stored)
        if found:
            why = "; ".join(f"{reason}: {rows}" for reason, rows in _by(self._lost, 1).most_common())
            raise IngestLossError(
                f"{self._table}: this ingest would take out {found} ({why}). Nothing was committed of it. Check the "
                "source and its annotations; if the loss is meant, allow it: --allow-loss, or allow_loss=True"
            )

    def _too_many(self, count_stored: Callable[[], Mapping[str, int]]) -> str:
        total = self._lost.total()
        if self._allowed or not total:
            return ""
        if self._stored is None:
            self._stored = count_stored()
        by_class, rows = _by(self._lost, 0), sum(self._stored.values())
        whole = [
            f"{name!r} ({count})"
            for name, count in self._stored.items()
            if count >= _SMALLEST_CLASS and by_class[name] >= count
        ]
        if total <= _SHARE * rows and not whole:
            return ""
        classes = f", and every row of {some_of(whole, _MOST_NAMED)}" if whole else ""
        return f"{total} of {rows} stored rows{classes}"


def _by(lost: Mapping[tuple[str, str], int], part: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for key, rows in lost.items():
        counts[key[part]] += rows
    return counts
