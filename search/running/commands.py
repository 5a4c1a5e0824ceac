"""Commands from another terminal to a running search, through a file next to its journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, get_args

from ...errors import InvalidArgumentError
from ...stores.data_files import write_bytes
from .journal import is_held

Command = Literal["pause", "continue", "stop"]
COMMAND_FILE = "command.json"


def send(folder: Path, command: Command) -> None:
    """Tells a running search to pause, to continue or to end.

    Args:
        folder: Its journal's folder.
        command: The command.

    Raises:
        InvalidArgumentError: If no process runs it.
    """
    if not is_held(folder):
        raise InvalidArgumentError(
            f"no process runs the search {folder.parent.name}, so there is nothing to {command}; "
            f"lakelens search --resume {folder.parent.name} resumes one that has not finished"
        )
    write_bytes(str(folder / COMMAND_FILE), json.dumps({"command": command}).encode(), None)


class CommandInbox:
    """The commands that a search has been sent.

    Args:
        folder: Its journal's folder; commands sent to an earlier process are removed.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / COMMAND_FILE
        self._path.unlink(missing_ok=True)

    def take(self) -> Command | None:
        """Takes the last command; None if there is none."""
        taken = self._path.with_suffix(".taken")
        try:
            self._path.replace(taken)  # a file written from now on is the next command
        except FileNotFoundError:
            return None
        text = taken.read_text(encoding="utf-8")
        taken.unlink()
        command = json.loads(text).get("command")
        return command if command in get_args(Command) else None
