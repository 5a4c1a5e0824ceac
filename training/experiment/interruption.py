"""Ctrl-C and SIGTERM during a training: the first one pauses it, the second one ends it at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def pausing(pause: Callable[[], None]) -> Iterator[None]:
    """Calls `pause` at the first SIGINT or SIGTERM in the body; the next one does what it would do without this.

    Outside the main thread, which alone may handle signals, and for signals that are ignored, nothing changes.

    Args:
        pause: Called from a signal handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while handlers:
            number, handler = handlers.popitem()
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        pause()
        sys.stderr.write("lakelens: pausing after a checkpoint; interrupt again to end at once\n")

    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if handler not in (signal.SIG_IGN, None):
            handlers[number] = handler
            signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
