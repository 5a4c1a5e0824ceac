"""Interrupts a training: Ctrl-C and SIGTERM, of which the second ends it at once, and other processes."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ...errors import RankFailedError, TrainingKilled
from ...tracking.requests import requests_heard
from ...tracking.runs import RunReference
from ..runner.placement.conversation import Controls

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def pausing(pause: Callable[[int], None], *, can_pause: bool = True) -> Iterator[None]:
    """Calls `pause` at the first SIGINT or SIGTERM in the body; the next signal has its usual effect.

    Has no effect outside the main thread, which alone may handle signals, and for ignored signals.
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
        pause(number)
        # No second Ctrl-C without a terminal; the end of the training has its own line.
        if can_pause and sys.stderr.isatty():
            with contextlib.suppress(RuntimeError):  # the main thread may be writing there
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


@contextlib.contextmanager
def obeying_requests(run: RunReference, controls: Controls) -> Iterator[None]:
    """Carries out requests of other processes (`lakelens runs pause|kill RUN`) while the body trains the run."""
    killed = threading.Event()

    def obey(asked: str) -> None:
        logger.warning("%s of run %s was requested by another process", asked, run.run_id)
        if asked == "pause":
            controls.tell({"pause": True})
            return
        killed.set()
        controls.end()

    try:
        with requests_heard(run, obey):
            yield
    except RankFailedError as error:
        if not killed.is_set():
            raise
        raise TrainingKilled(f"run {run.run_id} was killed by another process") from error
