"""Turns pydantic's findings about an experiment file into one error with the path, line, value and rule of each."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ...errors import ConfigurationError
from .determined import instead_of
from .rules import rule_of, shown
from .space import HyperparameterError
from .yaml_file import Document, KeyPath

# What has no key of its name at the top, as other tools have it.
_MOVED = {
    "epochs": "searcher: {max_length: {epochs: 10}}",
    "num_epochs": "searcher: {max_length: {epochs: 10}}",
    "max_epochs": "searcher: {max_length: {epochs: 10}}",
    "batch_size": "hyperparameters: {global_batch_size: 64}",
    "lr": "hyperparameters: {learning_rate: 0.001}",
    "learning_rate": "hyperparameters: {learning_rate: 0.001}",
    "seed": "reproducibility: {experiment_seed: 0}",
    "metric": "searcher: {metric: val_loss}",
}
_TABLE = "data: {table: tables/photos}"
_EXAMPLES: dict[KeyPath, str] = {("data",): _TABLE, ("data", "table"): _TABLE}


def configuration_error(model: type[BaseModel], document: Document, error: ValidationError) -> ConfigurationError:
    """Makes the error that a user sees: a line for each problem, in the order of the file."""
    lines: dict[str, None] = {}
    for found in error.errors():
        lines.setdefault(_line(model, document, dict(found)))
    problems = list(lines)
    head = f"{document.name}: " if len(problems) == 1 else f"{document.name}: {len(problems)} problems\n  "
    return ConfigurationError(head + "\n  ".join(problems))


def _line(model: type[BaseModel], document: Document, found: dict[str, Any]) -> str:
    path: KeyPath = tuple(part for part in found["loc"] if _is_key(document, found["loc"], part))
    cause = found.get("ctx", {}).get("error")
    value = found["input"]
    if isinstance(cause, HyperparameterError):
        path, value = (*path, *cause.path), cause.value
    known = _fields_at(model, path[:-1])
    rule = rule_of(found, known)
    if found["type"] == "extra_forbidden":
        rule = instead_of(path) or _elsewhere(model, path) or rule
    if path in _EXAMPLES:
        rule = f"{rule}, as in {_EXAMPLES[path]}"
    dotted = ".".join(str(part) for part in path)
    if not dotted:  # keys that contradict each other: the rule begins with one of them
        place = document.place_of(tuple(rule.split()[0].split(".")))
        return f"{place}, {rule}" if place else rule
    place = document.place_of(path)
    subject = f"{place}, {dotted}" if place else dotted
    return f"{subject}: {rule}" if isinstance(value, dict) else f"{subject} is {shown(value)}: {rule}"


def _elsewhere(model: type[BaseModel], path: KeyPath) -> str | None:
    """Says in which section a key at the top belongs; None for others."""
    name = str(path[-1])
    if len(path) > 1:
        return None
    if name in _MOVED:
        return f"there is no such key at the top; write {_MOVED[name]}"
    sections = [section for section in model.model_fields if name in _fields_at(model, (section,))]
    return f"there is no such key at the top; it belongs into {sections[0]}" if len(sections) == 1 else None


def _is_key(document: Document, location: tuple[Any, ...], part: Any) -> bool:
    """Separates keys from the names of union members, which pydantic also puts into a location."""
    return not (isinstance(part, str) and part in ("int", "str", "list[int]") and part == location[-1])


def _fields_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    current: type[BaseModel] | None = model
    for part in path:
        field = current.model_fields.get(str(part)) if current is not None else None
        if field is None:
            return []
        options = [field.annotation, *get_args(field.annotation)]
        current = next(
            (option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None
        )
    return list(current.model_fields) if current is not None else []
