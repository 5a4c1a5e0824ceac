"""A hook of MkDocs: writes the parts of pages that are made of the code and of the benchmarks' results.

They are the flags of every command, the keys of the experiment file and of Determined that are refused, the aims of
benchmarks, and the table of faults. A page has the mark of a part where the part goes.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from benchmarks import fault_page, summary
from lakelens.jobs.cli import build_parser
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.configuration.hyperparameters import KINDS
from lakelens.training.configuration.lengths import Length
from lakelens.training.configuration.problems import INSTEAD
from lakelens.training.trials.determined_code import CONTEXT, METHODS

_MARK = re.compile(r"^<!-- generated: ([a-z ]+) -->$", re.MULTILINE)
_MANY = 3  # commands from which a flag is listed as shared


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces each mark of a page by its part."""
    return _MARK.sub(lambda found: PARTS[found[1]](), markdown)


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


def command_flags() -> str:
    """Lists the flags of all commands; each line that many share stands once."""
    found = list(commands())
    uses = Counter(line for one in found for line in _lines(one))
    shared = [line for line, count in uses.items() if count >= _MANY and line.startswith("- `--")]
    parts = ["\n".join(["## Shared flags\n", *shared]), *(_section(one, shared) for one in found)]
    return "\n\n".join(parts) + "\n"


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


def markdown_lists() -> str:
    """Returns one list per section: key, type, default, meaning; the spaces of hyperparameters are one list."""
    lists = [f"## Top level\n\nEach key with its type and default.\n\n{_list(ExperimentConfig)}"]
    sections: list[tuple[str, type[BaseModel]]] = [*_sections(ExperimentConfig), ("Lengths", Length)]
    for name, section in sections:
        lists.append(f"## {name}\n\n{(section.__doc__ or '').strip()}\n\n{_list(section)}")
    spaces = "\n".join(_space(kind, model) for kind, model in KINDS.items())
    return "\n\n".join([*lists, f"## Hyperparameters by type\n\n{spaces}"]) + "\n"


def refused_keys() -> str:
    """Returns a list of Determined's keys that are refused, with what to use instead."""
    return _ways_out(INSTEAD)


def refused_code() -> str:
    """Returns a list of what a Trial has of Determined and is refused, with what to write instead."""
    context = {f"self.context.{name}": way_out for name, way_out in CONTEXT.items()}
    return _ways_out({**context, **{f"def {name}": way_out for name, way_out in METHODS.items()}})


def _ways_out(known: Mapping[str, str]) -> str:
    names: dict[str, list[str]] = {}
    for name, way_out in sorted(known.items()):
        names.setdefault(way_out, []).append(f"`{name}`")
    return "\n".join(f"- {', '.join(same)}: {way_out}" for way_out, same in names.items()) + "\n"


def _sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        nested = _model_of(field.annotation)
        if nested is not None and nested is not Length:
            yield f"{prefix}{name}", nested
            yield from _sections(nested, f"{prefix}{name}.")


def _list(model: type[BaseModel]) -> str:
    return "\n".join(
        f"- `{name}` ({_type(field)}{_default(field)}): {field.description or ''}"
        for name, field in model.model_fields.items()
    )


def _space(kind: str, model: type[BaseModel]) -> str:
    keys = ", ".join(
        f"`{name}` ({(field.description or '').rstrip('.').lower()})"
        for name, field in model.model_fields.items()
        if name != "type"
    )
    return f"- `{kind}`: {(model.__doc__ or '').strip()} Keys: {keys}."


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "; required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Length):
        return f"; `{{{value.unit}: {value.amount}}}`"
    if isinstance(value, BaseModel):
        return ""
    if value is None:
        return "; null"
    return "; empty" if value == "" else f"; `{str(value).lower() if isinstance(value, bool) else value}`"


def _type(field: FieldInfo) -> str:
    return _name_of(field.annotation)


def _name_of(annotation: Any) -> str:
    nested = _model_of(annotation)
    if nested is not None:
        return "length" if nested is Length else "section"
    options, origin = get_args(annotation), get_origin(annotation)
    if origin is list:
        return f"list of {_name_of(options[0])}"
    if origin is dict:
        return "mapping"
    if origin is Literal:
        return ", ".join(f"`{option}`" for option in options)
    if options:
        return " or ".join(_name_of(option) for option in options if option is not type(None))
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(annotation, "value")


def _model_of(annotation: Any) -> type[BaseModel] | None:
    for option in (annotation, *get_args(annotation)):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


PARTS: dict[str, Callable[[], str]] = {
    "flags of commands": command_flags,
    "keys of experiments": markdown_lists,
    "refused code": refused_code,
    "refused keys": refused_keys,
    "aims of benchmarks": summary.tables,
    "faults": fault_page.table,
}
