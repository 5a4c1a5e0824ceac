"""What a launch of ranks runs for several test modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def in_turn(functions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Calls the functions in the same order on every rank, so that the ranks meet in the collectives of each."""
    return {name: function() for name, function in functions.items()}
