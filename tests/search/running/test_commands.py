"""Rules of what another terminal tells a search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakelens.search.running.commands import COMMAND_FILE, CommandInbox

pytestmark = pytest.mark.unit


def test_a_command_that_comes_while_another_is_taken_is_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(command: str) -> None:
        (tmp_path / COMMAND_FILE).write_text(json.dumps({"command": command}))

    def read(path: Path, encoding: str) -> str:
        text = path.read_bytes().decode(encoding)
        tell("stop")
        return text

    inbox = CommandInbox(tmp_path)
    assert inbox.take() is None
    tell("pause")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read)
        assert inbox.take() == "pause"
    assert inbox.take() == "stop"
    assert inbox.take() is None
    assert list(tmp_path.iterdir()) == []
