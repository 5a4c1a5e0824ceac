"""The flags of every command in docs/commands.md, written from the parsers so that they cannot drift."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lakelens.jobs.cli import build_parser

COMMAND = "python -m lakelens.jobs.reference docs/commands.md"
_MARK = f"<!-- The rest is written by `{COMMAND}`. -->\n"
_SHARED_HEADING = "## Shared flags"
_MANY = 3  # commands from which a flag is listed as shared


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
    """Replaces what follows the mark of a page by the flags of all commands, each line that many share only once."""
    found = list(commands())
    uses = Counter(line for one in found for line in _lines(one))
    shared = [line for line, count in uses.items() if count >= _MANY and line.startswith("- `--")]
    parts = ["\n".join([f"{_SHARED_HEADING}\n", *shared]), *(_section(one, shared) for one in found)]
    return page.partition(_MARK)[0] + _MARK + "\n" + "\n\n".join(parts) + "\n"


def _section(command: Command, shared: Sequence[str]) -> str:
    own = "\n".join(line for line in _lines(command) if line not in shared)
    known = ", ".join(line.split("`")[1] for line in _lines(command) if line in shared)
    also = f"Shared: `{known.replace(', ', '`, `')}`." if known else ""
    return "\n\n".join(part for part in (f"## lakelens {command.name}", command.does, own, also) if part)


def _lines(command: Command) -> list[str]:
    return [_line(action) for action in command.parser._actions if _is_own(action)]


def _is_own(action: argparse.Action) -> bool:
    is_everywhere = action.dest in ("result_file", "quiet", "verbose")
    return not is_everywhere and not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))


def _line(action: argparse.Action) -> str:
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else None
    value = action.metavar or choices or action.dest.upper()
    words = " ".join([*action.option_strings, *([] if action.nargs == 0 else [str(value)])])
    name = words if action.option_strings else str(action.metavar or action.dest)
    is_unset = action.default is None or action.default is False or action.default in ([], argparse.SUPPRESS)
    default = "" if is_unset else f" (default: `{action.default}`)"
    return f"- `{name}`: {(action.help or '').replace('<', '&lt;')}{default}"


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(with_flags(place.read_text(encoding="utf-8")), encoding="utf-8")
