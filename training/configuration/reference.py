"""Generates the reference of the experiment file in docs/, and its JSON schema, from its models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .determined import INSTEAD
from .experiment import ExperimentConfig
from .hyperparameters import KINDS
from .lengths import Length

COMMAND = "python -m lakelens.training.configuration.reference docs/experiments.md docs/migration/determined.md"
_MARKER = f"<!-- What follows is written by `{COMMAND}`. -->"


def json_schema() -> dict[str, Any]:
    """Returns the JSON schema of the experiment file, for editors (`lakelens schema`)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **ExperimentConfig.model_json_schema()}


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
    keys: dict[str, list[str]] = {}
    for key, way_out in sorted(INSTEAD.items()):
        keys.setdefault(way_out, []).append(f"`{key}`")
    return "\n".join(f"- {', '.join(same)}: {way_out}" for way_out, same in keys.items()) + "\n"


def with_reference(page: str, reference: str) -> str:
    """Replaces the generated part of a page, below its marker."""
    return f"{page.partition(_MARKER)[0]}{_MARKER}\n\n{reference}"


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


if __name__ == "__main__":
    for _path, _reference in zip(sys.argv[1:], (markdown_lists(), refused_keys()), strict=True):
        _page = Path(_path)
        _page.write_text(with_reference(_page.read_text(encoding="utf-8"), _reference), encoding="utf-8")
