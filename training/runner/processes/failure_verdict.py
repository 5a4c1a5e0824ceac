"""Decides how a job's ranks ended, and which of them is to blame. Pure: events and a clock in, a verdict out."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from ....errors import RankFailedError
from ....user_frames import with_cells
from .failure_words import describe_end, describe_raised, is_startup_line, signal_name, tells_of_the_machine
from .rank_record import RankEvent, RankRecord

# A death is reported within milliseconds, but after the connection errors that it causes in other ranks.
SETTLE_PRIMARY_S = 0.3
SETTLE_CONSEQUENCE_S = 3.0
# Ending the other ranks (SIGTERM, then SIGKILL) takes up to this long and is part of the user's timeout.
END_ALLOWANCE_S = 5.0


@dataclass(frozen=True)
class Failure:
    """Why a job failed: the rank to blame and a description."""

    rank: int
    reason: str
    sentence: str


class JobRecord:
    """Follows the ranks of one attempt and decides when it has failed, and why."""

    def __init__(self, size: int, stall_timeout_s: float, starts: int = 1, *, shows_lines: bool = False) -> None:
        self.starts = starts
        self.shows_lines = shows_lines  # Whether the user has seen the lines of ranks
        self.ranks = [RankRecord(rank) for rank in range(size)]
        self.stall_timeout_s = stall_timeout_s
        self.patience_s = stall_timeout_s - min(END_ALLOWANCE_S, stall_timeout_s / 10)
        self._evidence: list[tuple[int, bool]] = []  # (rank, is it a consequence only), in the order seen
        self._evidence_at: float | None = None
        self._primary_at: float | None = None
        self._joining_at: float | None = None
        self.value: dict[str, Any] = {}
        """Where rank 0's value is (see `return_value`), once it has returned."""

    # --- events ---------------------------------------------------------------------------------------------------

    def record(self, event: RankEvent, now: float) -> None:
        """Records one event."""
        rank, data = self.ranks[event.rank], event.data
        if event.kind == "line":
            rank.log.append(data["text"])
        elif event.kind == "started":
            rank.host, rank.pid = data.get("host", rank.host), data.get("pid")
        elif event.kind == "ready":
            rank.ready = True
        elif event.kind == "joining":
            rank.joining = True
            self._joining_at = self._joining_at or now
        elif event.kind == "joined":
            rank.joined = True
        elif event.kind == "progress":
            counts = data["entered"], data["left"]
            if counts != (rank.entered, rank.left_collectives):
                rank.entered, rank.left_collectives = counts
                rank.progress_at = now
            rank.confirmed_at = now
        elif event.kind == "message" and event.rank in self._behind():
            for waiting in self.ranks:  # for a rank that works: their wait starts again
                waiting.progress_at = max(waiting.progress_at, now)
        elif event.kind == "returned":
            rank.returned_at = now
            if event.rank == 0:
                self.value = data
        elif event.kind == "raised":
            rank.raised = data
            self._note(event.rank, bool(data.get("consequence")), now)
        elif event.kind == "stopped":
            rank.stopped_at, rank.stop_signal = now, data.get("signal")
        elif event.kind == "continued":
            rank.stopped_at = None
        elif event.kind == "ended":
            rank.ended = data
            rank.stopped_at = None
            if rank.died:
                self._note(event.rank, False, now)
        elif event.kind == "gone":
            rank.gone = True
        elif event.kind == "lost" and not rank.left:
            rank.lost = data["reason"]
            self._note(event.rank, False, now)

    def _note(self, rank: int, consequence: bool, now: float) -> None:
        self._evidence.append((rank, consequence))
        self._evidence_at = self._evidence_at or now
        if not consequence:
            self._primary_at = self._primary_at or now

    # --- verdict --------------------------------------------------------------------------------------------------

    @property
    def all_returned(self) -> bool:
        """Returns whether the training function has returned on every rank."""
        return all(rank.returned_at is not None for rank in self.ranks)

    @property
    def all_ready(self) -> bool:
        """Returns whether every rank runs the training function, or has."""
        return all(rank.ready for rank in self.ranks)

    @property
    def has_evidence(self) -> bool:
        """Returns whether something has gone wrong, though it may not be clear yet who is to blame."""
        return self._evidence_at is not None

    @property
    def all_joined(self) -> bool:
        """Returns whether every rank has joined the world of collectives."""
        return all(rank.joined for rank in self.ranks)

    def failure(self, now: float) -> Failure | None:
        """Returns whether the job has failed by `now`, once it is clear which rank is to blame."""
        if self._primary_at is not None:
            return self._primary() if now - self._primary_at >= SETTLE_PRIMARY_S else None
        if self._evidence_at is not None:
            return self._consequence(now) if now - self._evidence_at >= SETTLE_CONSEQUENCE_S else None
        for rank in self.ranks:
            if rank.stopped_at is not None and now - rank.stopped_at >= self.patience_s:
                return self._stopped(rank, now)
        found = self._unjoined(now) or self._stalled()
        if found is not None and found.reason == "stalled":
            # The others may have waited slightly longer than the stopped rank has been stopped.
            for rank in self.ranks:
                if rank.stopped_at is not None and now - rank.stopped_at >= self.patience_s / 2:
                    return self._stopped(rank, now)
        return found

    def _primary(self) -> Failure:
        number = next(rank for rank, consequence in self._evidence if not consequence)
        rank = self.ranks[number]
        if rank.raised is not None:
            return self._raised(number)
        if rank.lost is not None:
            return Failure(number, "lost", rank.lost)
        return Failure(number, "died", describe_end(rank.ended or {}))

    def _stopped(self, rank: RankRecord, now: float) -> Failure:
        seconds = now - (rank.stopped_at or now)
        return Failure(
            rank.rank,
            "stopped",
            f"was stopped by {signal_name(rank.stop_signal or signal.SIGSTOP)} and did not continue for "
            f"{seconds:.0f} s (stall_timeout_s={self.stall_timeout_s:g})",
        )

    def _consequence(self, now: float) -> Failure:
        """Finds the rank that caused errors which only report that some rank went away."""
        early = [rank for rank in self.ranks if rank.returned_at is not None]
        if early:
            first = min(early, key=lambda rank: rank.returned_at or 0.0)
            return Failure(first.rank, "left_early", _LEFT_EARLY)
        for rank in self.ranks:
            if rank.stopped_at is not None:
                return self._stopped(rank, now)
        numbers = [number for number, _ in self._evidence]
        absent = [rank.rank for rank in self.ranks if not rank.joining]
        for missing, what in ((self._behind(), _ABSENT), (absent, _NEVER_JOINED)):
            # An apparently broken connection may be the rank's own error, while the others waited for it.
            own = [number for number in numbers if number in missing]
            if own:
                return self._raised(own[0])
            if missing:
                return Failure(missing[0], "stalled", f"{what}; the connections of those that waited for it failed")
        return self._raised(numbers[0])

    def _raised(self, number: int) -> Failure:
        return Failure(number, "raised", describe_raised(self.ranks[number].raised or {}))

    def _unjoined(self, now: float) -> Failure | None:
        """Finds the rank that others wait for in hvd.init()."""
        if self._joining_at is None or len(self.ranks) == 1 or self.all_joined:
            return None
        absent = [rank for rank in self.ranks if not rank.joining]
        waited = now - self._joining_at
        for rank in absent:
            if rank.returned_at is not None and now - rank.returned_at >= SETTLE_PRIMARY_S:
                return Failure(rank.rank, "left_early", _RETURNED_UNJOINED)
        if waited < self.patience_s:
            return None
        if absent:
            return Failure(absent[0].rank, "stalled", self._stall_sentence(_NEVER_JOINED))
        late = next(rank for rank in self.ranks if not rank.joined)
        return Failure(late.rank, "stalled", self._stall_sentence(_NOT_CONNECTED))

    def _stalled(self) -> Failure | None:
        """Finds the rank that others wait for in a collective: one that has entered fewer collectives."""
        longest = max(self.ranks, key=lambda rank: rank.waited_s)
        if longest.waited_s < self.patience_s:
            return None
        behind = self._behind()
        if behind:
            return Failure(behind[0], "stalled", self._stall_sentence(_ABSENT))
        return Failure(longest.rank, "stalled", self._stall_sentence(_ALL_WAIT))

    def _behind(self) -> list[int]:
        """The ranks that have entered the fewest collectives, if some have entered more."""
        least, most = min(rank.entered for rank in self.ranks), max(rank.entered for rank in self.ranks)
        return [rank.rank for rank in self.ranks if rank.entered == least] if least < most else []

    def _stall_sentence(self, what: str) -> str:
        limit = f"within {self.stall_timeout_s:g} s"
        return f"{what} {limit}; a job that waits longer on purpose needs a larger stall_timeout_s"

    # --- the error ------------------------------------------------------------------------------------------------

    def error(self, failure: Failure) -> RankFailedError:
        """Makes the error of a failure: the user's traceback first, then which rank, where, why, and its last lines."""
        rank = self.ranks[failure.rank]
        raised = rank.raised or {} if failure.reason == "raised" else {}
        shown = raised.get("shown")
        size = len(self.ranks)
        tried = f" The job was started {self.starts} times." if self.starts > 1 else ""
        others = " All other ranks were ended." if size > 1 else ""
        summary, short = (
            f"rank {rank.rank} of {size} on {rank.host} {what}.{others}{tried}"
            for what in (failure.sentence, describe_raised(raised, with_message=False))
        )
        log = list(rank.log)
        told = [line for line in log if not is_startup_line(line)]
        tail = f"Last {len(told)} lines of rank {rank.rank}'s log:\n" + "\n".join(f"  {line}" for line in told)
        end = rank.ended or {}
        if tells_of_the_machine(raised):  # such as a full disk: a traceback would add nothing
            parts = [summary]
        else:
            parts = [with_cells(shown), short] if shown else [summary]
            parts += [tail] if told and not (raised and self.shows_lines) else []
        return RankFailedError(
            "\n\n".join(parts),
            rank=rank.rank,
            host=rank.host,
            reason=failure.reason,
            exit_code=end.get("exit_code"),
            signal_name=signal_name(end["signal"]) if end.get("signal") else None,
            log=log,
            traceback=raised.get("traceback"),
            summary=summary,
            kind=raised.get("type"),
        )


_NEVER_JOINED = "never reached hvd.init()"
_RETURNED_UNJOINED = "returned without calling hvd.init() while other ranks wait there"
_NOT_CONNECTED = "could not connect to the other ranks; the network between the hosts must let them through"
_ABSENT = "did not take part in a collective that the others wait in"
_ALL_WAIT = (
    "waits in a collective that no rank leaves; ranks may have called different ones, "
    "or the network between them fails,"
)
_LEFT_EARLY = "returned from the training function while other ranks still waited for it in a collective"
