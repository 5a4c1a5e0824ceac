"""The flags of every command in docs/commands.md, written from the parsers so that they cannot drift."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lakelens.jobs.cli import build_parser

COMMAND = "python -m lakelens.jobs.reference docs/commands.md"
_MARK = f"<!-- The rest is written by `{COMMAND}`. -->\n"


class Command(NamedTuple):
    """One command, or one action of a command.

    Attributes:
        name: Such as `table history`.
        does: One sentence.
        parser: Its arguments.
    """

    name: str
    does: str
    parser: argparse.ArgumentParser


def commands(parser: argparse.ArgumentParser | None = None, prefix: str = "") -> Iterator[Command]:
    """Lists every command and action, as `--help` orders them."""
    for action in (parser or build_parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            does = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for word, sub in action.choices.items():
                yield Command(prefix + word, f"{does[word][0].upper()}{does[word][1:].rstrip('.')}.", sub)
                yield from commands(sub, f"{prefix}{word} ")


def with_flags(page: str) -> str:
    """Replaces what follows the mark of a page by the flags of all commands."""
    return page.partition(_MARK)[0] + _MARK + "\n" + "\n".join(_section(one) for one in commands())


def _section(command: Command) -> str:
    rows = [_row(action) for action in command.parser._actions if _is_own(action)]
    table = _table(("argument", "default", "meaning"), rows) if rows else "No other arguments."
    return "\n\n".join([f"## lakelens {command.name}", command.does, table]) + "\n"


def _is_own(action: argparse.Action) -> bool:
    is_shared = action.dest in ("result_file", "quiet", "verbose")
    return not is_shared and not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))


def _row(action: argparse.Action) -> tuple[str, str, str]:
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else None
    value = action.metavar or choices or action.dest.upper()
    words = " ".join([*action.option_strings, *([] if action.nargs == 0 else [str(value)])])
    name = words if action.option_strings else str(action.metavar or action.dest)
    is_unset = action.default is None or action.default is False or action.default in ([], argparse.SUPPRESS)
    cells = f"`{name}`", "" if is_unset else f"`{action.default}`", (action.help or "").replace("<", "&lt;")
    return cells[0].replace("|", "\\|"), cells[1], cells[2].replace("|", "\\|")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, *rows)).replace("\n", f"\n|{'---|' * len(head)}\n", 1)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(with_flags(place.read_text(encoding="utf-8")), encoding="utf-8")
