"""The user classes that a model needs: from the caller, from the code recorded with its run, or from packages."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

from ...errors import CheckpointError, ModelMismatchError
from ...training.checkpoints.keras_files import UserObject, user_objects
from ...training.checkpoints.manifests import ENTRYPOINT_KEY, TORCH
from ...training.checkpoints.references import ModelRef
from ...training.record.code_record import read_code, read_packages
from ...training.trials.entrypoint import FILE_MODULE_PREFIX, class_of

_OWN_PACKAGE = "lakelens"
# Modules of two runs may have the same names; only those of one are visible at a time.
_IMPORTING = threading.RLock()


@dataclass(frozen=True)
class UserCode:
    """What a model needs in addition to Keras; travels to the Python workers."""

    objects: Mapping[str, Any] = field(default_factory=dict)  # Classes and functions by name, from the caller
    # Classes and functions that the run's code, or a package that it was trained with, defines
    needed: tuple[UserObject, ...] = ()
    # The run's code: text by path, relative to the folder from which it was imported
    files: Mapping[str, bytes] = field(default_factory=dict)
    run_id: str | None = None  # The run; None without code

    @contextmanager
    def loaded(self) -> Iterator[dict[str, Any]]:
        """Gives the classes and functions by the names that Keras looks up, while the run's modules can be imported."""
        # Load the model and call it once in the body: its layers may import when they are called.
        if not self.needed:
            yield dict(self.objects)
            return
        finder = _RecordedModules(self.files)
        with _IMPORTING:
            hidden = finder.take_out()
            sys.meta_path.insert(0, finder)
            try:
                found = [(one, self._import(one)) for one in self.needed]
                named = {name: value for one, value in found for name in (one.name, one.registered_name)}
                yield {**named, **self.objects}
            finally:
                sys.meta_path.remove(finder)
                finder.take_out()
                sys.modules.update(hidden)

    def digest(self) -> str:
        """Digests the code as Spark sends it: a notebook's classes by their code, a module's by their name."""
        from pyspark.serializers import CloudPickleSerializer

        pickled: bytes = CloudPickleSerializer().dumps((self.objects, self.needed, sorted(self.files.items())))
        return hashlib.sha256(pickled).hexdigest()

    def _import(self, one: UserObject) -> Any:
        try:
            return getattr(importlib.import_module(one.module), one.name)
        # The user's module can raise any exception; the caller needs one type that names the run.
        except Exception as error:
            raise CheckpointError(
                f"the model needs {one.name!r} of module {one.module!r}, and the code recorded with run {self.run_id} "
                f"cannot be imported here: {type(error).__name__}: {error}. Install what it imports on every machine"
            ) from error


def user_code(model: ModelRef, custom_objects: Mapping[str, Any] | None = None) -> UserCode:
    """Finds what a model needs in addition to Keras, without importing it; code comes from its own run alone."""
    given = dict(sorted((custom_objects or {}).items()))
    wanted = _wanted(model)
    needed = tuple(one for one in wanted if one.name not in given and one.registered_name not in given)
    if not needed:
        return UserCode(given)
    files, reason = {}, "the model is named by path, not by its run"
    if model.tracking_uri is not None and model.run_id is not None:
        files = read_code(model.tracking_uri, model.run_id)
        reason = f"the code recorded with run {model.run_id} does not define it"
    modules = _RecordedModules(files)
    others = [one for one in needed if one.module not in modules.paths]
    packages = _recorded_packages(model) if others else frozenset()
    for one in others:
        if one.module.partition(".")[0] not in {*packages, _OWN_PACKAGE}:
            raise ModelMismatchError(
                f"{model.uri}: the model needs {one.registered_name!r} of module {one.module!r}, which is not part of "
                f"Keras ({reason}). Define the class in the entry point's file, in a module next to it or in a package "
                "that is installed here too, train, and name the model by its run (runs:/<run id>); in Python, pass "
                f"custom_objects={{{one.registered_name!r}: <the class>}}"
            )
    return UserCode(given, needed, files, model.run_id)


def _wanted(model: ModelRef) -> tuple[UserObject, ...]:
    """Lists the user's classes that a model is built of; a PyTorch model is built by its Trial."""
    if model.checkpoint.backend != TORCH:
        return user_objects(model.checkpoint.model_path, compile=False)
    entrypoint = str(model.checkpoint.metadata.get(ENTRYPOINT_KEY, ""))
    return (UserObject(entrypoint, *class_of(entrypoint)),)


def _recorded_packages(model: ModelRef) -> frozenset[str]:
    """Lists the modules importable here from packages that the model's run used, in any version."""
    if model.tracking_uri is None or model.run_id is None:
        return frozenset()
    names = {_plain(re.split("==| @ ", line)[0]) for line in read_packages(model.tracking_uri, model.run_id)}
    installed = importlib.metadata.packages_distributions().items()
    return frozenset(package for package, brought_by in installed if names & set(map(_plain, brought_by)))


def _plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


class _RecordedModules(MetaPathFinder, Loader):
    """Imports modules from recorded files, in memory; other modules of the same packages are the installed ones."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        # By the module's name; the file of an entry point has a second name, as in training
        self.paths: dict[str, str] = {}
        for path in files:
            parts = PurePosixPath(path).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.paths[name] = path
            if len(parts) == 1:
                self.paths[FILE_MODULE_PREFIX + name] = path
        self._folders = {
            ".".join(parent.parts) for path in files for parent in PurePosixPath(path).parents if parent.parts
        }

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Describes a recorded module, or a folder of them."""
        spec = None
        if fullname in self.paths:
            is_package = self.paths[fullname].endswith("__init__.py")
            spec = spec_from_loader(fullname, self, origin=self.paths[fullname], is_package=is_package)
        elif fullname in self._folders:
            spec = ModuleSpec(fullname, None, is_package=True)
        if spec is not None and spec.submodule_search_locations is not None:
            # Modules missing from the record, such as compiled ones, come from the installed package of that name.
            installed = PathFinder.find_spec(fullname, path)
            if installed is not None:
                spec.submodule_search_locations.extend(installed.submodule_search_locations or ())
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Runs a module's source."""
        path = self.paths[module.__name__]
        module.__file__ = path
        exec(compile(self._files[path], path, "exec"), module.__dict__)  # noqa: S102  what the run itself trained with

    def take_out(self) -> dict[str, ModuleType]:
        """Removes all modules of these names from the imported ones, and returns them."""
        names = {*self.paths, *self._folders} & sys.modules.keys()
        return {name: sys.modules.pop(name) for name in names}
