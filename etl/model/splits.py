"""Splits by content: a row's split is a pure function of the bytes of its source and a seed."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Mapping

from ...errors import InvalidArgumentError

DEFAULT_SPLITS: Mapping[str, float] = {"train": 0.8, "validation": 0.1, "test": 0.1}

# Names become folders of the table (split=train), so they stay within what every file system takes.
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z")
_TOLERANCE = 1e-6


def check_splits(splits: Mapping[str, float]) -> dict[str, float]:
    """Checks names and fractions and returns them as a plain dictionary, in the given order."""
    if not splits:
        raise InvalidArgumentError("splits is empty; give at least one, as in {'train': 0.8, 'validation': 0.2}")
    result: dict[str, float] = {}
    folded: dict[str, str] = {}
    for name, fraction in splits.items():
        if not isinstance(name, str) or not _SPLIT_NAME.match(name):
            raise InvalidArgumentError(
                f"splits: {name!r} is not a name of at most 100 letters, digits, _ and -, as in 'train'"
            )
        if folded.setdefault(name.lower(), name) != name:
            raise InvalidArgumentError(
                f"splits: {folded[name.lower()]!r} and {name!r} differ in upper and lower case alone, and would be one "
                "folder on many disks; choose other names"
            )
        is_number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
        if not is_number or not math.isfinite(fraction) or not 0 <= fraction <= 1:
            raise InvalidArgumentError(f"splits[{name!r}] = {fraction!r}: a fraction is a number from 0 to 1")
        result[name] = float(fraction)
    total = sum(result.values())
    if abs(total - 1) > _TOLERANCE:
        raise InvalidArgumentError(f"splits {result} sum to {total:g}, and must sum to 1; change one of the fractions")
    return result


def position_of(content_hash: str, seed: int) -> float:
    """Maps a content hash to a number in [0, 1) that is uniform over contents and independent between seeds."""
    digest = hashlib.sha256(f"{seed}:{content_hash}".encode()).digest()
    # 53 bits: every value is an exact float, so that no rounding reaches 1.0.
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def split_of(content_hash: str, splits: Mapping[str, float], seed: int) -> str:
    """Chooses the split of one content: the interval of the fractions, in their order, that holds its position."""
    position = position_of(content_hash, seed)
    names = [name for name, fraction in splits.items() if fraction]
    uppers = itertools.accumulate(splits[name] for name in names)
    # The fractions may sum to a hair under 1.
    return next((name for name, upper in zip(names, uppers, strict=True) if position < upper), names[-1])
