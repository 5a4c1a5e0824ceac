"""Other names under which modules are imported: the same modules, and not copies."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class ModuleAliases(MetaPathFinder, Loader):
    """Imports some names, and the modules below them, as one package and its modules."""

    def __init__(self, target: str, *names: str) -> None:
        self._target, self._names = target, names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds these names alone."""
        return ModuleSpec(fullname, self) if self._name_of(fullname) is not None else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Imports the module by its own name."""
        module = importlib.import_module(self._target + spec.name.removeprefix(self._name_of(spec.name) or ""))
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives it back its own specification, which the import of the alias has replaced."""
        module.__spec__ = self._own

    def install(self) -> None:
        """Applies to imports of this process from now on."""
        sys.meta_path.insert(0, self)

    def _name_of(self, fullname: str) -> str | None:
        return next((name for name in self._names if fullname == name or fullname.startswith(f"{name}.")), None)
