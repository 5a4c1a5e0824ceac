"""The events of one rank, checked on arrival, and the record that they add up to; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....errors import LaunchError

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
    """The state of one rank as reported."""

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
    progress_at: float = 0.0  # When these two counts last changed
    confirmed_at: float = 0.0  # When they were last reported
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


_Fields = Mapping[str, tuple[type, ...]]
_MAYBE_NUMBER = (int, type(None))
_EVENTS: Mapping[str, _Fields] = {
    "started": {"pid": (int,), "host": (str,)},
    "ready": {},
    "joining": {},
    "joined": {},
    "progress": {"entered": (int,), "left": (int,)},
    "message": {"text": (str,)},
    "asked": {"number": (int,), "body": (dict,)},
    "line": {"stream": (str,), "text": (str,)},
    "returned": {},
    "raised": {"type": (str,), "message": (str,), "traceback": (str,), "shown": (str,), "consequence": (bool,)},
    "stopped": {"signal": (int,)},
    "continued": {},
    "ended": {"exit_code": _MAYBE_NUMBER, "signal": _MAYBE_NUMBER, "peak_bytes": _MAYBE_NUMBER},
    "gone": {},
    "lost": {"reason": (str,)},
}
_VALUE_OF_RANK_ZERO: _Fields = {"pickle": (int,), "large": (list,)}
_HELLO: _Fields = {
    "host": (str,),
    "machine": (str,),
    "executor": (str,),
    "python": (str,),
    "version": (str,),
    "problem": (str, type(None)),
    "gpus": (list,),
    "visible_gpus": (str, type(None)),
}
_SHOWN_CHARACTERS = 60


def checked_event(rank: int, kind: Any, data: Any) -> RankEvent:
    """Makes an event from received data."""
    fields = _EVENTS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise LaunchError(f"an event has kind={_short(kind)}; kinds are {', '.join(_EVENTS)}")
    if kind == "returned" and rank == 0:
        fields = _VALUE_OF_RANK_ZERO
    _require(f"an event of kind {kind!r}", data, fields)
    for part in data["large"] if kind == "returned" and rank == 0 else []:
        if not isinstance(part, list) or [type(value) for value in part] != [str, int] or part[1] < 0:
            raise LaunchError(f"an event of kind 'returned' has large=[{_short(part)}]; it must be [kind, bytes]")
    return RankEvent(rank, kind, data)


def check_hello(hello: Mapping[str, Any]) -> None:
    """Checks a task's introduction."""
    _require("a HELLO", hello, _HELLO)


def _require(what: str, data: Any, fields: _Fields) -> None:
    if not isinstance(data, dict):
        raise LaunchError(f"{what} has data={_short(data)}; it must be an object")
    for name, kinds in fields.items():
        if not isinstance(data.get(name), kinds):
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise LaunchError(f"{what} has {name}={_short(data.get(name))}; it must be {wanted}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
