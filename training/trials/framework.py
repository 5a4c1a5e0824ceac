"""Finds the framework of a Trial in its source, before anything of the user's is imported. Pure."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ..checkpoints.manifests import KERAS, TORCH

_TORCH_TRIAL = "TorchTrial"
_MOST_MODULES = 20


def framework_of(source: str, class_name: str, folders: Iterable[Path], package: tuple[str, ...] = ()) -> str:
    """Returns `torch` for a class that derives from `lakelens.TorchTrial`, else `keras`.

    Base classes are followed within the source, and into the modules that it imports them from.
    """
    importlib.invalidate_caches()  # a notebook may have written a module a moment ago
    places, waiting, seen = list(folders), [(source, class_name, package)], set[tuple[str, str]]()
    while waiting and len(seen) < _MOST_MODULES:
        text, name, inside = waiting.pop()
        if (text, name) in seen:
            continue
        seen.add((text, name))
        for base in _bases(text, name, inside):
            if base[-1] == _TORCH_TRIAL:
                return TORCH
            found = _source_of(base[:-1], places)
            if found is not None:
                waiting.append((found, base[-1], base[:-2]))
    return KERAS


def _bases(source: str, class_name: str, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the base classes of a class, and of those in the same text, as module and name."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    names = dict(_imported(tree, package))
    waiting, seen = [class_name], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in classes:
            yield names.get(name, (name,))
            continue
        for base in classes[name].bases:
            parts = ast.unparse(base).split(".")
            if len(parts) == 1:
                waiting.append(parts[0])
            else:
                yield (*names.get(parts[0], (parts[0],)), *parts[1:])


def _imported(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the names that imports bind, with what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            inside = (*above, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield alias.asname or alias.name, (*inside, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield bound, tuple(alias.name.split(".")) if alias.asname else (bound,)


def _source_of(module: tuple[str, ...], folders: list[Path]) -> str | None:
    name = ".".join(module)
    with contextlib.suppress(ImportError, SyntaxError, UnicodeDecodeError):
        # In a checkout lakelens's folders are not its packages.
        found = importlib.util.find_spec(name) if module[:1] == ("lakelens",) else _spec_of(module, folders)
        # The loader finds the text: in a file, or in an archive sent by spark-submit.
        return getattr(found.loader, "get_source", lambda _: None)(found.name) if found else None
    return None


def _spec_of(module: tuple[str, ...], folders: list[Path]) -> ModuleSpec | None:
    """Finds a module in folders and archives; unlike `importlib.util.find_spec` without importing its packages."""
    spec, places = None, [str(folder) for folder in folders]
    for part in module:
        # By the whole name, a package without __init__.py would ask for the packages above it, which are not imported.
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return spec
