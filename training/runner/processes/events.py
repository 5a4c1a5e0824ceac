"""Validates the events of ranks and the introductions of tasks on arrival."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import LaunchError
from .rank_record import RankEvent

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
