"""The page of all commands and flags in docs/, written from the parsers so that it cannot drift."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lakelens.jobs.cli import build_parser
from lakelens.jobs.contracts import CONTRACTS, EXIT_CODES

COMMAND = "python -m lakelens.jobs.reference docs/commands.md"
_HEAD = """\
<!-- Written by `{command}`. -->
# Commands and flags

The last line on stdout is one JSON object; its keys are listed as the result of each command. Every command and action
also takes `--result-file PATH|URI`, which gets the object too, and `--verbose`, which shows what Spark, Ivy and
TensorFlow say while they start. When a command fails, the object has `error`, the class of the error, and `message`.

## Exit codes

{exit_codes}

## What each command does to the data

{contracts}
"""


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


def markdown() -> str:
    """Writes the page."""
    codes = _table(("code", "meaning"), [(str(code), meaning) for code, meaning in EXIT_CODES.items()])
    contracts = [
        (f"[{name}](#lakelens-{name.replace(' ', '-')})", one.reads, one.writes, one.retry)
        for name, _, _ in commands()
        if (one := CONTRACTS.get(name)) is not None
    ]
    table = _table(("command", "reads", "writes", "trying it again"), contracts)
    head = _HEAD.format(command=COMMAND, exit_codes=codes, contracts=table)
    return "\n".join([head, *(_section(one) for one in commands())])


def _section(command: Command) -> str:
    rows = [_row(action) for action in command.parser._actions if _is_own(action)]
    table = _table(("argument", "default", "meaning"), rows) if rows else "No other arguments."
    return "\n\n".join([f"## lakelens {command.name}", command.does, *_result_lines(command.name), table]) + "\n"


def _result_lines(name: str) -> list[str]:
    """Lists the keys of the result; commands that only hold actions have none."""
    found = CONTRACTS.get(name)
    if found is None:
        return []
    return [
        f"Result: {_code(found.result)}.",
        *(f"With `{flags}`: {_code(keys)}." for flags, keys in found.variants.items()),
    ]


def _is_own(action: argparse.Action) -> bool:
    is_shared = action.dest in ("result_file", "verbose")
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


def _code(keys: str) -> str:
    return ", ".join(f"`{key}`" for key in keys.split())


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(markdown(), encoding="utf-8")
