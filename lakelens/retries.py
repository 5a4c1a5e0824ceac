"""Writers that were slower than another one try again, after a random wait that may be longer each time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from .errors import TableConflictError

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Retries:
    """How often and after which waits a writer tries."""

    attempts: int  # The most attempts
    first_wait_s: float  # Bounds the wait before the second attempt; the bound doubles with each further one
    longest_wait_s: float  # Bounds every wait

    def run(self, work: Callable[[], _Value], gave_up: str) -> _Value:
        """Calls `work` until it raises no conflict."""
        for attempt in range(self.attempts):
            self.wait(attempt)
            try:
                return work()
            except TableConflictError as error:
                conflict = error
        raise TableConflictError(f"{gave_up} Last of {self.attempts} attempts: {conflict}") from conflict

    def wait(self, attempt: int) -> None:
        """Waits before an attempt, the first of which is 0."""
        if attempt:
            longest = min(self.longest_wait_s, self.first_wait_s * 2**attempt)
            time.sleep(random.uniform(0, longest))  # noqa: S311  no secret
