"""Bounded waits for a store: work in daemon threads, and an error when the store does not answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ..errors import FeedStalledError

Item = TypeVar("Item")
Result = TypeVar("Result")

STALL_TIMEOUT_S = 60.0


def watched(work: Callable[[], Result], what: str, timeout_s: float = STALL_TIMEOUT_S) -> Result:
    """Does some work and waits for it no longer than a limit."""
    return next(watched_each(lambda _: work(), [None], lambda _: what, timeout_s, threads=1))


def watched_each(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    describe: Callable[[Item], str],
    timeout_s: float = STALL_TIMEOUT_S,
    threads: int = 16,
) -> Iterator[Result]:
    """Does some work for each of many items, several at once, and gives the results in the order of the items."""
    # Not in a pool, whose threads are joined at the interpreter's end: one that hangs would hang it too.
    done: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
    waiting = iter(range(len(items)))
    lock = threading.Lock()
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            with lock:
                index = next(waiting, None)
            if index is None:
                return
            try:
                done.put((index, work(items[index]), None))
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                done.put((index, None, error))

    for _ in range(min(threads, len(items))):
        threading.Thread(target=run, daemon=True, name="lakelens-watched").start()
    ready: dict[int, Result] = {}
    try:
        for expected in range(len(items)):
            while expected not in ready:
                try:
                    index, result, error = done.get(timeout=timeout_s)
                except queue.Empty:
                    raise FeedStalledError(
                        f"{describe(items[expected])} has not answered for {timeout_s:g} s; check the store, or raise "
                        "stall_timeout_s"
                    ) from None
                if error is not None:
                    raise error
                ready[index] = result
            yield ready.pop(expected)
    finally:
        stopped.set()
