"""The pages of all commands and flags in docs/, written from the parsers so that they cannot drift."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lakelens.jobs.cli import build_parser

COMMAND = "python -m lakelens.jobs.reference docs/commands.json docs/commands.md"
_HEAD = f"""\
<!-- Written by `{COMMAND}`. -->
# Commands and flags

The same as [one JSON file](commands.json), for those who write pipelines. What each command reads, writes and does when
it is tried again: [jobs](jobs.md). Every command and action also takes `--result-file PATH|URI`.
"""


def commands() -> list[dict[str, Any]]:
    """Gives every command and action: its name, what it does, and its arguments in the order of `--help`."""
    return [
        {"command": name, "does": does, "arguments": [_argument(one) for one in _arguments(parser)]}
        for name, does, parser in _parsers(build_parser(), "lakelens")
    ]


def machine_readable(described: list[dict[str, Any]]) -> str:
    """Gives the JSON file: a list with one command on each line.

    Args:
        described: From `commands`.
    """
    lines = ",\n".join(json.dumps(one, default=str) for one in described)
    return f"[\n{lines}\n]\n"


def markdown(described: list[dict[str, Any]]) -> str:
    """Gives the page.

    Args:
        described: From `commands`.
    """
    sections = [_HEAD]
    for one in described:
        lines = ["| argument | default | meaning |", "|---|---|---|"]
        for argument in one["arguments"]:
            default = "" if argument["default"] is None else f"`{argument['default']}`"
            name, meaning = (argument[key].replace("|", "\\|") for key in ("name", "help"))
            meaning = meaning.replace("<", "&lt;")
            lines.append(f"| `{name}` | {default} | {meaning} |")
        table = "\n".join(lines) if one["arguments"] else "No arguments of its own."
        sections.append(f"## {one['command']}\n\n{one['does']}\n\n{table}\n")
    return "\n".join(sections)


def _parsers(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            does = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for word, sub in action.choices.items():
                yield f"{name} {word}", f"{does[word][0].upper()}{does[word][1:].rstrip('.')}.", sub
                yield from _parsers(sub, f"{name} {word}")


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)) and action.dest != "result_file":
            yield action


def _argument(action: argparse.Action) -> dict[str, Any]:
    value = action.metavar or action.dest.upper()
    words = " ".join([*action.option_strings, *([] if action.nargs == 0 else [str(value)])])
    return {
        "name": words if action.option_strings else str(action.metavar or action.dest),
        "required": action.required,
        "repeatable": isinstance(action, argparse._AppendAction),
        "default": None if action.default in (None, False, [], argparse.SUPPRESS) else action.default,
        "help": action.help or "",
    }


if __name__ == "__main__":
    _described = commands()
    Path(sys.argv[1]).write_text(machine_readable(_described), encoding="utf-8")
    Path(sys.argv[2]).write_text(markdown(_described), encoding="utf-8")
