"""The events of one rank, and the record that they add up to; pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

KEPT_LOG_LINES = 100


@dataclass(frozen=True)
class RankEvent:
    """Something that happened to one rank."""

    rank: int  # Which rank
    # One of started, ready, joining, joined, progress, message, asked, line, returned, raised, stopped, continued,
    # ended, gone, lost
    kind: str
    data: dict[str, Any] = field(default_factory=dict)  # Details as plain JSON values, by kind


@dataclass
class RankRecord:
    """The state of one rank as reported.

    Its counts of collectives changed at `progress_at`, and `confirmed_at` is the last time that it reported them.
    """

    rank: int
    host: str = "unknown host"
    pid: int | None = None
    ready: bool = False
    joining: bool = False
    joined: bool = False
    returned_at: float | None = None
    raised: dict[str, Any] | None = None
    ended: dict[str, Any] | None = None
    gone: bool = False
    lost: str | None = None
    entered: int = 0
    left_collectives: int = 0
    progress_at: float = 0.0
    confirmed_at: float = 0.0
    stopped_at: float | None = None
    stop_signal: int | None = None
    log: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LOG_LINES))

    @property
    def left(self) -> bool:
        """Returns whether the rank can no longer take part in collectives."""
        return (
            self.returned_at is not None or self.raised is not None or self.ended is not None or self.lost is not None
        )

    @property
    def waited_s(self) -> float:
        """Seconds that it has waited in one collective, up to its last report."""
        return self.confirmed_at - self.progress_at if self.entered > self.left_collectives and not self.left else 0.0

    @property
    def died(self) -> bool:
        """Returns whether the process ended without a report."""
        return self.ended is not None and self.returned_at is None and self.raised is None
