"""The key of a job, under which a repeated call does the work once; pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import InvalidArgumentError
from .options import flat

_LONGEST = 250
_NAMED = 10
_ABSENT = object()


@dataclass(frozen=True)
class Job:
    """A job that a scheduler may start again: calls with the same key and arguments do its work once.

    The first call does the work. A later one returns its result once it has finished. A training or a search follows
    another process that works on it, and resumes what was interrupted or has failed; other work is done twice at most,
    and nothing is added twice.

    Attributes:
        key: Any text of at most 250 characters, such as the id of the scheduler's task; unique in the store.
        takeover: Ends another process that works on a training or a search, instead of following it.
        from_start: With `takeover`: starts over instead of resuming; what was done before loses the key.

    Raises:
        InvalidArgumentError: If the key is empty, too long or has control characters.

    Examples:
        >>> once = lakelens.train("tables/photos@0", epochs=1, global_batch_size=16, job="photos/monday")
        >>> again = lakelens.train("tables/photos@0", epochs=1, global_batch_size=16, job=lakelens.Job("photos/monday"))
        >>> again.run_id == once.run_id
        True
    """

    key: str
    takeover: bool = False
    from_start: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not self.key.strip() or len(self.key) > _LONGEST:
            raise InvalidArgumentError(f"job={self.key!r}: give a text of 1 to {_LONGEST} characters")
        if not self.key.isprintable() or ("'" in self.key and '"' in self.key):
            raise InvalidArgumentError(
                f"job={self.key!r}: give a key without control characters, and without both kinds of quotes"
            )
        if self.from_start and not self.takeover:
            raise InvalidArgumentError("from_start (--from-start) is for a takeover: add takeover=True (--takeover)")

    @classmethod
    def of(cls, job: str | Job | None) -> Job | None:
        """Returns the job of a key."""
        return job if job is None or isinstance(job, Job) else cls(job)

    @property
    def digest(self) -> str:
        """What names the job where its key cannot stand, as in the name of a file."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:32]

    @property
    def how_to_start_over(self) -> str:
        """The ways out in a message."""
        return "give another key, or start over with --takeover --from-start (Job(..., takeover=True, from_start=True))"


def recorded_arguments(arguments: Mapping[str, Any], limit: int) -> str:
    """Writes arguments as JSON, or as its digest where that is longer than `limit` characters."""
    text = _text(arguments)
    return text if len(text) <= limit else _digest(text)


def check_arguments(job: Job, recorded: str, arguments: Mapping[str, Any]) -> None:
    """Checks that a call has the arguments of the first one of its key; the error lists what differs."""
    text = _text(arguments)
    if recorded in (text, _digest(text)):
        return
    before = {} if recorded.startswith("sha256:") else json.loads(recorded)
    now = json.loads(text)
    if before == now:  # 0 and 0.0 are one value
        return
    names = sorted(name for name in {*before, *now} if before.get(name, _ABSENT) != now.get(name, _ABSENT))
    told = (
        [f"{name} was {_shown(before, name)} and is {_shown(now, name)}" for name in names[:_NAMED]] if before else []
    )
    raise InvalidArgumentError(
        f"job {job.key!r} was begun with other arguments: {'; '.join(told) or 'too long to be kept and listed'}. "
        f"Give the same ones, {job.how_to_start_over}"
    )


def _text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(flat(arguments), sort_keys=True, default=str)


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _shown(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "not given"
