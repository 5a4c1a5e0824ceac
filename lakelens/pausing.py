"""Pauses a call by Ctrl-C and SIGTERM: the first signal asks it to stop at a good point, the second ends it at once."""

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
def pausing(pause: Callable[[int], None], notice: str | None) -> Iterator[None]:
    """Calls `pause` at the first SIGINT or SIGTERM in the body; the next signal has its usual effect."""
    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        yield
        return
    handlers: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while handlers:
            number, handler = handlers.popitem()
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        pause(number)
        # No second Ctrl-C without a terminal; the end of the call has its own line.
        if notice is not None and sys.stderr.isatty():
            with contextlib.suppress(RuntimeError):  # the main thread may be writing there
                sys.stderr.write(f"lakelens: {notice}; interrupt again to end at once\n")

    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if handler not in (signal.SIG_IGN, None):
            handlers[number] = handler
            signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
