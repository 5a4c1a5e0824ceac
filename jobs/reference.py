"""The pages of all commands and flags in docs/, written from the parsers so that they cannot drift."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lakelens.jobs.cli import build_parser
from lakelens.jobs.contracts import CONTRACTS, EXIT_CODES

COMMAND = "python -m lakelens.jobs.reference docs/commands.json docs/commands.md"
_HEAD = """\
<!-- Written by `{command}`. -->
# Commands and flags

The same as [one JSON file](commands.json), for those who write pipelines. The last line on stdout is one JSON object;
its keys are listed as the result of each command. Every command and action also takes `--result-file PATH|URI`, which
gets the object too, and `--verbose`, which shows what Spark, Ivy and TensorFlow say while they start. When a command
fails, the object has `error`, the class of the error, and `message`.

## Exit codes

{exit_codes}

## What each command does to the data

{contracts}
"""
_COLUMNS = ("reads", "writes", "retry")


def commands() -> list[dict[str, Any]]:
    """Gives every command and action: its name, what it does, its contract, and its arguments as `--help` orders them.

    Those that only hold actions have no contract.
    """
    return [
        {
            "command": name,
            "does": does,
            **_contract(name.removeprefix("lakelens ")),
            "arguments": [_argument(one) for one in _arguments(parser)],
        }
        for name, does, parser in _parsers(build_parser(), "lakelens")
    ]


def machine_readable(described: list[dict[str, Any]]) -> str:
    """Gives the JSON file: the exit codes, and the commands with one on each line.

    Args:
        described: From `commands`.
    """
    lines = ",\n".join(json.dumps(one, default=str) for one in described)
    return f'{{"exit_codes": {json.dumps(EXIT_CODES)},\n"commands": [\n{lines}\n]}}\n'


def markdown(described: list[dict[str, Any]]) -> str:
    """Gives the page.

    Args:
        described: From `commands`.
    """
    codes = _table(("code", "meaning"), [(str(code), meaning) for code, meaning in EXIT_CODES.items()])
    contracts = [
        (f"[{one['command'].removeprefix('lakelens ')}](#{one['command'].replace(' ', '-')})", *map(one.get, _COLUMNS))
        for one in described
        if "result" in one
    ]
    table = _table(("command", "reads", "writes", "trying it again"), contracts)
    sections = [_HEAD.format(command=COMMAND, exit_codes=codes, contracts=table)]
    for one in described:
        rows = []
        for argument in one["arguments"]:
            default = "" if argument["default"] is None else f"`{argument['default']}`"
            name, meaning = (argument[key].replace("|", "\\|") for key in ("name", "help"))
            rows.append((f"`{name}`", default, meaning.replace("<", "&lt;")))
        table = _table(("argument", "default", "meaning"), rows) if rows else "No other arguments."
        parts = [f"## {one['command']}", one["does"], *_result_lines(one), table]
        sections.append("\n\n".join(parts) + "\n")
    return "\n".join(sections)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, *rows)).replace("\n", f"\n|{'---|' * len(head)}\n", 1)


def _result_lines(described: dict[str, Any]) -> list[str]:
    if "result" not in described:
        return []
    lines = [f"Result: {_code(described['result'])}."]
    return [*lines, *(f"With `{flags}`: {_code(keys)}." for flags, keys in described["variants"].items())]


def _code(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _contract(name: str) -> dict[str, Any]:
    found = CONTRACTS.get(name)
    if found is None:
        return {}
    return {
        "reads": found.reads,
        "writes": found.writes,
        "result": found.result.split(),
        "variants": {flags: keys.split() for flags, keys in found.variants.items()},
        "retry": found.retry,
    }


def _parsers(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            does = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for word, sub in action.choices.items():
                yield f"{name} {word}", f"{does[word][0].upper()}{does[word][1:].rstrip('.')}.", sub
                yield from _parsers(sub, f"{name} {word}")


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        is_own = action.dest not in ("result_file", "verbose")
        if is_own and not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            yield action


def _argument(action: argparse.Action) -> dict[str, Any]:
    value = action.metavar or action.dest.upper()
    words = " ".join([*action.option_strings, *([] if action.nargs == 0 else [str(value)])])
    return {
        "name": words if action.option_strings else str(action.metavar or action.dest),
        "required": action.required,
        "repeatable": isinstance(action, argparse._AppendAction),
        "default": None if action.default is False or action.default in ([], argparse.SUPPRESS) else action.default,
        "help": action.help or "",
    }


if __name__ == "__main__":
    _described = commands()
    Path(sys.argv[1]).write_text(machine_readable(_described), encoding="utf-8")
    Path(sys.argv[2]).write_text(markdown(_described), encoding="utf-8")
