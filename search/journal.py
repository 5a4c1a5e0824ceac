"""The journal of a search: entries of JSON lines, one per event, each on disk before its events take effect.

An entry is a file that is written once, and holds events that take effect together. A killed search resumes from its
entries, because the searcher's answers depend on the events alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, InvalidArgumentError
from ..stores.write_once import partial_path, publish

JOURNAL_FOLDER = "journal"
_READ_AT_ONCE = 16

Event = dict[str, Any]


def journal_folder(root: Path, run_id: str) -> Path:
    """Gives the folder of a search's journal."""
    return root / run_id / JOURNAL_FOLDER


class Journal:
    """Adds entries. A process that adds to a journal to which another one has added meanwhile gets an error.

    Attributes:
        entries: Their number.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.entries = len(_entries(folder))

    def append(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Adds events, each with an `event` and a `time`, as one entry; once this returns they are on disk."""
        name = _name(self.entries)
        text = "".join(json.dumps(event) + "\n" for event in events)
        try:
            with partial_path(self._folder, name) as partial:
                partial.write_text(text, encoding="utf-8")
                added = publish(partial, self._folder / name)
        except OSError as error:
            raise CheckpointError(
                f"{self._folder / name} cannot be written ({error}); checkpoint_storage.path must be a writable "
                "folder. Resume the search when it is"
            ) from error
        if not added:
            raise InvalidArgumentError(
                f"{self._folder / name} was written by another process, which runs the search too; one process runs a "
                "search"
            )
        self.entries += 1


def read_events(folder: Path) -> list[Event]:
    """Reads the events of a journal."""
    entries = _entries(folder)
    if not entries:
        raise InvalidArgumentError(f"there is no journal in {folder}; is the run a search?")
    with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
        return [event for events in threads.map(_read, entries) for event in events]


def _entries(folder: Path) -> list[Path]:
    """Lists the entries up to the last one, those too that are gone."""
    last = max((int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdecimal()), default=-1)
    return [folder / _name(number) for number in range(last + 1)]


def _name(number: int) -> str:
    return f"{number:08d}.jsonl"


def _read(entry: Path) -> list[Event]:
    try:
        # Not splitlines(), which also breaks at characters that JSON may contain, such as U+2028.
        *lines, rest = entry.read_text(encoding="utf-8").split("\n")
        if rest or not lines:
            raise ValueError("its end is missing")
        events = [json.loads(line) for line in lines]
        for event in events:
            event["event"], event["time"]
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise InvalidArgumentError(f"{entry} is not an entry of a journal ({error}); put it back from a copy") from None
    return events
