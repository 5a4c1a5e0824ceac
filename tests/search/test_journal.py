"""Rules of a search's journal."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from volumes import make_volume

from lakelens.errors import CheckpointError, InvalidArgumentError
from lakelens.search.journal import Journal, read_events

pytestmark = pytest.mark.unit

WHOLE = '{"event": "created", "time": 2}'


@pytest.mark.parametrize("on_a_volume", [False, True])
def test_a_journal_keeps_its_entries_and_numbers_that_json_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_volume: bool
) -> None:
    if on_a_volume:
        make_volume(tmp_path, monkeypatch)
    folder = tmp_path / "journal"
    with pytest.raises(InvalidArgumentError, match="is the run a search"):
        read_events(folder)
    metrics = {"a": math.inf, "b": -math.inf, "c": 1.5}
    first = [{"event": "validated", "time": 1, "metrics": metrics}, {"event": "created", "time": 1, "name": "\u2028"}]
    Journal(folder).append(first)
    Journal(folder).append([{"event": "finished", "time": 2}])
    assert read_events(folder) == [*first, {"event": "finished", "time": 2}]
    assert [path.name for path in sorted(folder.iterdir())] == ["00000000.jsonl", "00000001.jsonl"]


def test_an_entry_whose_writer_was_killed_has_no_event(tmp_path: Path) -> None:
    Journal(tmp_path).append([{"event": "started", "time": 1}])
    (tmp_path / ".00000001.jsonl.0123456789abcdef.partial").write_text('{"event": "crea')
    Journal(tmp_path).append([{"event": "resumed", "time": 2}])
    assert [event["event"] for event in read_events(tmp_path)] == ["started", "resumed"]


def test_a_process_cannot_add_to_a_journal_to_which_another_one_has_added(tmp_path: Path) -> None:
    lost, other = Journal(tmp_path), Journal(tmp_path)
    other.append([{"event": "resumed", "time": 1}])
    with pytest.raises(InvalidArgumentError, match="written by another process, which runs the search too"):
        lost.append([{"event": "resumed", "time": 2}])
    assert read_events(tmp_path) == [{"event": "resumed", "time": 1}]


@pytest.mark.parametrize("left", ['{"event": "created", "time": 2}\n{"event": "crea', WHOLE, "nonsense\n", "", None])
def test_a_journal_that_lacks_an_entry_or_the_end_of_one_is_refused(tmp_path: Path, left: str | None) -> None:
    for number in range(3):
        Journal(tmp_path).append([{"event": "created", "time": number}, {"event": "stopped", "time": number}])
    entry = tmp_path / "00000001.jsonl"
    entry.unlink() if left is None else entry.write_text(left)
    with pytest.raises(InvalidArgumentError, match=r"00000001\.jsonl is not an entry of a journal.* from a copy"):
        read_events(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"checkpoint_storage\.path must be a writable folder"):
        Journal(tmp_path / "file").append([{"event": "started", "time": 1}])
