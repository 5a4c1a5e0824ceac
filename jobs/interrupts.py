"""What SIGINT and SIGTERM do to a command: one line, exit code 130 or 143, and no process that stays."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from lakelens.spark.jvm import end_jvm, is_verbose

# Terminals and schedulers send a signal to a process and to its group: what follows so soon is the same one.
_SAME_S = 1.0
_JVM_ENDS_S = 10.0


class Terminated(KeyboardInterrupt):
    """Raised in the job's main thread when it is sent SIGTERM, as by a scheduler that stops it."""

    signal_number = signal.SIGTERM


class Interrupts:
    """Raises in the main thread at the first SIGINT or SIGTERM; a later one ends the process at once."""

    # The first one also ends Spark's JVM, and silences stderr until the command has ended. Main threads mostly wait for
    # the JVM, which does not answer until the running job is done, and neither do the clean-ups that talk to it.
    # Whatever error that leads to, it is the signal that has ended the command.

    def __init__(self) -> None:
        self.number: signal.Signals | None = None  # The signal; None before
        self._handlers: dict[signal.Signals, Any] = {}
        self._since = 0.0
        self._raises = True
        self._jvm_ends = threading.Event()
        self._stderr: int | None = None

    def __enter__(self) -> Interrupts:
        usual = (signal.SIG_DFL, signal.default_int_handler)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) in usual:
                    self._handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._stderr is not None:
            os.dup2(self._stderr, 2)
            os.close(self._stderr)

    def leave(self) -> None:
        """Ends the watch of a process that ends next: a signal now ends it silently."""
        for number in self._handlers:
            signal.signal(number, signal.SIG_DFL)
        self._handlers, self._stderr = {}, None

    def hold(self) -> None:
        """Lets signals wait from now on, while the result is written: `number` tells of them."""
        self._raises = False

    def say(self, text: str) -> None:
        """Waits for the end of the JVM that a signal has ended, and writes one line to the real stderr."""
        if self._stderr is None:
            print(text, file=sys.stderr)
            return
        self._jvm_ends.wait(_JVM_ENDS_S)
        os.write(self._stderr, f"{text}\n".encode(errors="backslashreplace"))

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            if time.monotonic() - self._since > _SAME_S:
                os._exit(128 + number)
            return
        self.number, self._since = signal.Signals(number), time.monotonic()
        if not self._raises:
            return
        self._silence()
        _thread.start_new_thread(self._end_jvm, ())  # threading's own start takes locks that may be held here
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def _silence(self) -> None:
        if is_verbose():
            return
        with contextlib.suppress(OSError):  # as after 2>&-
            self._stderr = os.dup(2)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 2)
            os.close(silent)

    def _end_jvm(self) -> None:
        try:
            end_jvm()
        finally:
            self._jvm_ends.set()
