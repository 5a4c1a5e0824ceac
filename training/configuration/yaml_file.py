"""Reads YAML 1.2 into plain values and remembers the line of each key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from ...errors import ConfigurationError

KeyPath = tuple[str | int, ...]


@dataclass
class Document:
    """A mapping with the location of each of its keys."""

    name: str  # Its name in messages: the file's path, or a description of the values
    values: dict[str, Any]  # Plain Python values: dict, list, str, int, float, bool, None
    # By key path, the location of the key: `line 7`, or the override that set it
    places: dict[KeyPath, str] = field(default_factory=dict)

    def place_of(self, path: KeyPath) -> str | None:
        """Finds the location of `path`; a missing key has the location of its nearest parent."""
        for length in range(len(path), 0, -1):
            found = self.places.get(path[:length])
            if found is not None:
                return found
        return None


def read_yaml(path: str | Path) -> Document:
    """Reads a YAML file whose top level is a mapping."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} does not exist; give an experiment file, or keys as a dict") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read as a text file: {error}") from error
    loaded = _load(text, str(path))
    if not isinstance(loaded, Mapping):
        kind = "nothing" if loaded is None else "a list" if isinstance(loaded, list) else f"the single value {loaded!r}"
        raise ConfigurationError(
            f"{path} holds {kind} at its top level; an experiment file is a mapping, as in `name: digits`"
        )
    places: dict[KeyPath, str] = {}
    return Document(str(path), _plain(loaded, (), places), places)


def parse_value(text: str, name: str) -> Any:
    """Parses one YAML value, as in `--set key=VALUE`: `1e-3` is a number, `[16, 32]` a list, `abc` a text."""
    try:
        return _plain(_load(text, name), (), {})
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{name}={text!r} is not a YAML value ({error}); write a number, a list as in [16, 32], or a text, in "
            "quotes if it has special characters"
        ) from None


def with_keys(document: Document, keys: Mapping[str, Any]) -> Document:
    """Replaces the keys of a document; a section of the top level keeps its other keys."""
    values, places = dict(document.values), dict(document.places)
    for name, value in keys.items():
        section = isinstance(value, Mapping) and isinstance(values.get(name), Mapping)
        values[name] = {**values[name], **value} if section else value
        replaced = [(name, key) for key in value] if section else [(name,)]
        places = {path: place for path, place in places.items() if not any(path[: len(one)] == one for one in replaced)}
    return Document(document.name, values, places)


def with_overrides(document: Document, overrides: Iterable[str]) -> Document:
    """Applies overrides `a.b.c=VALUE`, later ones last; the value is YAML, and missing mappings are added."""
    values, places = _copy(document.values), dict(document.places)
    for override in overrides:
        key, equals, text = override.partition("=")
        names = key.strip().split(".")
        if not equals or not all(names):
            raise ConfigurationError(
                f"--set {override!r} is not KEY=VALUE, as in --set hyperparameters.learning_rate=0.01"
            )
        target = values
        for depth, name in enumerate(names[:-1], start=1):
            nested = target.setdefault(name, {})
            if not isinstance(nested, dict):
                raise ConfigurationError(
                    f"--set {override!r}: {'.'.join(names[:depth])} is {nested!r} in {document.name}, not a mapping"
                )
            target = nested
        target[names[-1]] = parse_value(text, f"--set {key}")
        path = tuple(names)
        places = {known: place for known, place in places.items() if known[: len(path)] != path}
        places[path] = f"--set {key}"
    return Document(document.name, values, places)


def _load(text: str, name: str) -> Any:
    reader = YAML(typ="rt", pure=True)  # "rt" keeps line numbers; "safe" does not
    try:
        return reader.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationError(f"{name}{where}: {' '.join(str(error.problem or error.context).split())}") from None
    except (YAMLError, ValueError) as error:
        raise ConfigurationError(f"{name} is not YAML: {' '.join(str(error).split())}") from None


def _plain(value: Any, path: KeyPath, places: dict[KeyPath, str]) -> Any:
    if isinstance(value, Mapping):
        plain: dict[Any, Any] = {}
        for key, nested in value.items():
            name = key if isinstance(key, str) else str(key)
            here = (*path, name)
            _note_line(value, key, here, places)
            plain[name] = _plain(nested, here, places)
        return plain
    if isinstance(value, (list, tuple)):
        for index in range(len(value)):
            here = (*path, index)
            _note_line(value, index, here, places)
        return [_plain(nested, (*path, index), places) for index, nested in enumerate(value)]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    raise ConfigurationError(
        f"{'.'.join(map(str, path)) or 'the value'} has a tag ({value}); only plain values are read"
    )


def _note_line(container: Any, key: Any, path: KeyPath, places: dict[KeyPath, str]) -> None:
    lines = getattr(container, "lc", None)
    if lines is not None and key in (lines.data or {}):
        places[path] = f"line {lines.data[key][0] + 1}"


def _copy(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _copy(value) for key, value in values.items()}
    return [_copy(value) for value in values] if isinstance(values, list) else values
