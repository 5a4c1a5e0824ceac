"""How far a work has come: images counted while Spark's tasks work, a bar in terminals, a line every 30 s in logs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    from typing import TextIO

_GOOD, _BAD = b"+", b"-"


@contextlib.contextmanager
def image_counter(file: str | None) -> Iterator[Callable[[bool], None]]:
    """Gives what counts an image in a task, as good or bad; it counts nothing where the file is out of reach."""
    # It appends one byte in one step, so that many tasks may.
    try:
        descriptor = None if file is None else os.open(file, os.O_WRONLY | os.O_APPEND)
    except OSError:
        descriptor = None

    def count(is_good: bool) -> None:
        if descriptor is not None:
            with contextlib.suppress(OSError):  # a full disk has its own error
                os.write(descriptor, _GOOD if is_good else _BAD)

    try:
        yield count
    finally:
        if descriptor is not None:
            os.close(descriptor)


class ImageCount:
    """Reads what tasks have counted."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._place = self._done = self._bad = 0

    def read(self) -> tuple[int, int]:
        """Returns how many images are done, and how many of these are bad."""
        with contextlib.suppress(OSError), self._file.open("rb") as counted:
            counted.seek(self._place)
            new = counted.read()
            self._place += len(new)
            self._done += len(new)
            self._bad += new.count(_BAD)
        return self._done, self._bad


_POLL_S = 0.5
_JOIN_S = 5.0
_LINE_EVERY_S = 30.0


class ProgressBar:
    """A bar, in a terminal or a notebook: amount, rate, time left."""

    def __init__(self, name: str, file: TextIO | None = None, unit: str = "images") -> None:
        self._name = name
        self._bar: tqdm[Any] = _bar_class()(desc=name, unit=f" {unit}", unit_scale=True, dynamic_ncols=True, file=file)

    def reached(self, place: str, done: float, total: float) -> None:
        """Moves the bar."""
        if self._bar.total != total:
            # Images of an earlier start do not count for this one's speed.
            self._bar.reset(total)
            self._bar.initial = self._bar.n = done
        self._bar.set_description(f"{self._name}: {place}" if place else self._name, refresh=False)
        self._bar.update(done - self._bar.n)

    def measured(self, name: str, value: float) -> None:
        """Shows a number right of the bar."""
        self._bar.set_postfix({name: _number(value)})

    def write(self, text: str) -> None:
        """Prints a line above the bar."""
        self._bar.write(text, file=sys.stdout)

    def say(self, text: str) -> None:
        """Prints a line above the bar, to stderr."""
        self._bar.write(text, file=sys.stderr)

    def ended(self) -> None:
        """Takes what is done for all: a training that stops early has not failed, and a notebook's bar stays green."""
        self._bar.total = self._bar.n

    def close(self) -> None:
        """Leaves the bar as it is."""
        self._bar.close()


class ProgressLines:
    """A line every half minute, for logs: amount, rate, time left."""

    def __init__(
        self, name: str, file: TextIO | None = None, every_s: float = _LINE_EVERY_S, unit: str = "images"
    ) -> None:
        self._name, self._file, self._every_s, self._unit = name, file, every_s, unit
        self._began = self._wrote = time.monotonic()
        self._first: float = 0
        self._last: float | None = None
        self._unsaid: str | None = None  # The last line, if it was not due; None too if none was before
        self._has_spoken = False
        self._numbers: dict[str, str] = {}

    def reached(self, place: str, done: float, total: float) -> None:
        """Writes a line when it is due."""
        now = time.monotonic()
        if self._last is None or done < self._last:  # the work begins here, or a restarted training continues here
            self._began = self._wrote = now
            self._first = done
        self._last = done
        rate = (done - self._first) / max(now - self._began, 1e-9)
        left = f", {tqdm.format_interval((total - done) / rate)} left" if rate else ""
        where = f" ({place})" if place else ""
        numbers = "".join(f", {name} {value}" for name, value in self._numbers.items())
        speed = f"{rate:,.1f}" if rate >= 1 or not rate else f"{rate:.2g}"
        line = f"{self._name}: {done:,} of {total:,} {self._unit}{where}, {speed} {self._unit}/s{left}{numbers}"
        if now - self._wrote < self._every_s:
            self._unsaid = line if self._has_spoken else None
            return
        self._wrote, self._has_spoken, self._unsaid = now, True, None
        self.say(line)

    def say(self, text: str) -> None:
        """Prints a line."""
        print(text, file=self._file or sys.stderr, flush=True)

    def measured(self, name: str, value: float) -> None:
        """Shows a number at the end of the next lines."""
        self._numbers[name] = _number(value)

    def ended(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Ends with the last amount, if there was a line before it."""
        if self._unsaid is not None:
            self.say(self._unsaid)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


@contextmanager
def shown_progress(name: str, unit: str = "images") -> Iterator[ProgressBar | ProgressLines]:
    """Opens a bar in a terminal or a notebook; elsewhere what writes a line every half minute."""
    bar = sys.stderr.isatty() or in_notebook()
    shown = ProgressBar(name, unit=unit) if bar else ProgressLines(name, unit=unit)
    try:
        yield shown
    finally:
        shown.close()


def _bar_class() -> type[tqdm[Any]]:
    # Without ipywidgets tqdm's widget is a warning.
    if not in_notebook() or importlib.util.find_spec("ipywidgets") is None:
        return tqdm
    from tqdm.notebook import tqdm_notebook

    widget: type[tqdm[Any]] = tqdm_notebook
    return widget


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    kernel = sys.modules.get("IPython")
    shell = kernel.get_ipython() if kernel is not None else None
    return shell is not None and hasattr(shell, "kernel")


@contextmanager
def image_progress(name: str, total: int, counted: Callable[[], tuple[int, int]] | None = None) -> Iterator[str | None]:
    """Shows how many images are done, and how many of them are bad, while the body runs."""
    if not total:
        yield None
        return
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="lakelens-progress-") as folder, shown_progress(name) as shown:
        file = Path(folder) / "images"
        file.touch(mode=0o600)
        count = ImageCount(file)

        def show() -> None:
            found = [count.read(), *([counted()] if counted is not None else [])]
            done, bad = (min(total, max(values)) for values in zip(*found, strict=True))
            shown.reached("", done, total)
            if bad:
                shown.measured("bad", bad)

        def watch() -> None:
            while not over.wait(_POLL_S):
                show()

        watcher = threading.Thread(target=watch, name="lakelens-progress", daemon=True)
        watcher.start()
        try:
            yield str(file)
        finally:
            over.set()
            watcher.join(_JOIN_S)
            show()
