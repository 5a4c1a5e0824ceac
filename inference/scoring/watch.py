"""Watches an image table: scores its latest version, and each later one when a look at the log finds it.

It is not a query of Structured Streaming: the checkpoint of one would be a second memory next to the predictions table,
and Delta's stream ends at the first change of the table's schema.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from ...errors import ScoringPaused
from ...log.opening import open_table
from ...pausing import pausing
from ...spark.port import keep_session
from .run import ScoringRun, Tally
from .source import ScoredTable, open_scored_table

# A signal's handler cannot wake the thread that it runs in: a sleep of this length ends after it.
_NAP_S = 0.5


def watch(run: ScoringRun, watch_s: float, strict: bool, report: Callable[[ScoringRun, float], None]) -> NoReturn:
    """Completes a run and then one for each version that comes, until a signal or an error ends it.

    `report` is called after each with the run and its start, by `time.perf_counter`.
    """
    signals: list[int] = []

    def pause() -> None:
        if signals:
            name = signal.Signals(signals[0]).name
            raise ScoringPaused(
                f"{run.source.name}: {name} has ended the watch after the part that it was in; the next call scores "
                "the remaining rows",
                signal_number=signals[0],
            )

    with pausing(signals.append, "ending after this part"):
        while True:
            started = time.perf_counter()
            # The uses of all versions that come would keep all files of the table from VACUUM.
            run.complete(stays=False, before_part=pause)
            report(run, started)
            pause()
            while not _is_outdated(run.source):
                _sleep(watch_s, pause)
                keep_session(run.spark)
            run = _of_latest(run)
            run.check(strict)


def _is_outdated(source: ScoredTable) -> bool:
    """Returns whether the log has another version than this one, or another table has taken its place."""
    latest = open_table(source.snapshot.table.at(None))
    return (latest.metadata().id, latest.version()) != (source.snapshot.table_id, source.version)


def _of_latest(run: ScoringRun) -> ScoringRun:
    source = run.source
    latest = open_scored_table(run.spark, source.snapshot.table.at(None), source.split, columns=source.columns)
    return replace(run, source=latest, tally=Tally())


def _sleep(seconds: float, pause: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _NAP_S))
        pause()
