"""One trial."""

from __future__ import annotations

from .base import Definition
from .fixed_length import FixedLengthSearcher


class SingleSearcher(FixedLengthSearcher):
    """Trains one trial to the end; finished when it fails."""

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition, total=1)
