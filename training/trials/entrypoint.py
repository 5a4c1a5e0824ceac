"""Finds the Trial class of an entry point and its framework: on the driver in its source, on the ranks by import."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import sys
import textwrap
import threading
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ...errors import TrialError
from ..checkpoints.manifests import KERAS, TORCH
from .determined_code import check_not_determined
from .trial import Trial

DEFAULT_ENTRYPOINT = "lakelens.training.trials.small_cnn:SmallCnn"
# Module name of an entry point's file, also recorded in checkpoints for its classes.
FILE_MODULE_PREFIX = "lakelens_trial_"
_FORMS = "give module:Class, path/to/file.py:Class or a Trial class"
# Modules in which base classes are looked up.
_MOST_MODULES = 20
# Python takes stale entries out of a dict: of two threads that do so at once, one fails with KeyError.
_INVALIDATING = threading.Lock()


@dataclass(frozen=True)
class EntryPoint:
    """A Trial class by name, in a form that can be sent to the ranks."""

    name: str  # Recorded name: `module:Class` or `/absolute/path/file.py:Class`
    target: str  # Module or path of the name
    class_name: str  # Class of the name
    source: str | None = None  # Text of the file, if it is a file: ranks on other machines need not have it
    trial_class: type[Trial] | None = None  # The class itself, if given as a class
    framework: str = KERAS  # The framework of its models, `keras` or `torch`

    @classmethod
    def parse(cls, entrypoint: str | type[Trial]) -> EntryPoint:
        """Reads an entry point and checks, without importing it, that its module or file has that class."""
        if isinstance(entrypoint, type):
            _require_trial(entrypoint, entrypoint.__qualname__)
            name = f"{entrypoint.__module__}:{entrypoint.__qualname__}"
            with contextlib.suppress(OSError, TypeError):  # a class without source, as one of `python -`
                lines, first = inspect.getsourcelines(entrypoint)
                check_not_determined(textwrap.dedent("".join(lines)), entrypoint.__name__, name, first)
            return cls(name, entrypoint.__module__, entrypoint.__qualname__, None, entrypoint, entrypoint.framework)
        target, colon, class_name = str(entrypoint).rpartition(":")
        if not colon or not target or not class_name.isidentifier():
            raise TrialError(f"entry point {entrypoint!r}: {_FORMS}")
        if target.endswith(".py"):
            return cls._of_file(Path(target).expanduser(), class_name)
        return cls._of_module(target, class_name)

    @classmethod
    def _of_file(cls, path: Path, class_name: str) -> EntryPoint:
        if not path.is_file():
            raise TrialError(f"entry point {path}:{class_name}: there is no such file")
        source = path.read_text(encoding="utf-8")
        _require_name(source, str(path), class_name)
        check_not_determined(source, class_name, str(path))
        absolute = str(path.absolute())
        framework = framework_of(source, class_name, [path.parent, *map(Path, sys.path)])
        return cls(f"{absolute}:{class_name}", absolute, class_name, source=source, framework=framework)

    @classmethod
    def _of_module(cls, module: str, class_name: str) -> EntryPoint:
        if not all(part.isidentifier() for part in module.split(".")):
            raise TrialError(f"entry point '{module}:{class_name}': {module!r} is not a module name; {_FORMS}")
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            raise TrialError(
                f"entry point '{module}:{class_name}': Python finds no module {module!r}; install it, "
                f"or give {_file_of(module)}:{class_name}"
            )
        # The loader finds the text: in a file, or in an archive sent by spark-submit.
        source = getattr(spec.loader, "get_source", lambda _: None)(module)
        if spec.origin and source is not None:
            _require_name(source, spec.origin, class_name)
            check_not_determined(source, class_name, spec.origin)
        framework = framework_of(source or "", class_name, map(Path, sys.path), tuple(module.split(".")[:-1]))
        return cls(f"{module}:{class_name}", module, class_name, framework=framework)

    def load(self) -> type[Trial]:
        """Imports the Trial class."""
        if self.trial_class is not None:
            return self.trial_class
        module = importlib.import_module(self.target) if self.source is None else self._execute(self.source)
        return _require_trial(getattr(module, self.class_name, None), self.name)

    def _execute(self, source: str) -> types.ModuleType:
        path = Path(self.target)
        name = FILE_MODULE_PREFIX + path.stem
        module = types.ModuleType(name)
        module.__file__ = self.target
        if path.parent.is_dir() and str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))  # files next to it can be imported, as when it runs as a script
        sys.modules[name] = module
        exec(compile(source, self.target, "exec"), module.__dict__)  # noqa: S102  the user's own file, named by the user
        return module


def class_of(name: str) -> tuple[str, str]:
    """Returns the module of an entry point's recorded name, as it is imported in a rank, and the class."""
    target, _, class_name = name.rpartition(":")
    return (FILE_MODULE_PREFIX + Path(target).stem if target.endswith(".py") else target), class_name


def _require_trial(value: object, name: str) -> type[Trial]:
    if not (isinstance(value, type) and issubclass(value, Trial)):
        raise TrialError(
            f"entry point {name!r} is {value!r}; it must be a subclass of lakelens.KerasTrial or TorchTrial"
        )
    missing = sorted(getattr(value, "__abstractmethods__", ()))
    if missing:
        raise TrialError(f"entry point {name!r} does not define {', '.join(missing)}")
    return value


def _require_name(source: str, path: str, class_name: str) -> None:
    """Checks that `source` binds `class_name` at its top level; the ranks check whether it is a Trial."""
    try:
        tree = ast.parse(source, path)
    except SyntaxError as error:
        raise TrialError(f"{path}, line {error.lineno}: {error.msg}; the Trial cannot be imported") from error
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    if class_name in classes or not _binds_plainly(tree, class_name):
        return
    raise TrialError(f"{path} defines no class {class_name!r}; it defines: {', '.join(classes) or 'none'}")


def _binds_plainly(tree: ast.Module, class_name: str) -> bool:
    """Returns whether reading the file is enough to see that `class_name` is not among its names."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return class_name not in names and "*" not in names and "__getattr__" not in functions


def _file_of(module: str) -> str:
    """Names the file that is meant by a module of the working folder, which is not on Python's path."""
    path = Path(*module.split(".")).with_suffix(".py")
    return str(path) if path.is_file() else "path/to/file.py"


def framework_of(source: str, class_name: str, folders: Iterable[Path], package: tuple[str, ...] = ()) -> str:
    """Returns `torch` for a class that derives from `lakelens.TorchTrial`, else `keras`; imports nothing of the user's.

    Base classes are followed within the source, and into the modules that it imports them from.
    """
    with _INVALIDATING:
        importlib.invalidate_caches()  # a notebook may have written a module a moment ago
    places, waiting, seen = list(folders), [(source, class_name, package)], set[tuple[str, str]]()
    while waiting and len(seen) < _MOST_MODULES:
        text, name, inside = waiting.pop()
        if (text, name) in seen:
            continue
        seen.add((text, name))
        for base in _bases(text, name, inside):
            if base[-1] == "TorchTrial":
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
