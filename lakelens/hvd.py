"""Horovod's Keras names, working on Keras 3: `import lakelens.hvd as hvd`.

This is the package `lakelens.training.distributed` under a shorter name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .training.distributed import *  # noqa: F403
    from .training.distributed import callbacks as callbacks

_TARGET = "lakelens.training.distributed"


class _Alias(MetaPathFinder, Loader):
    """Imports `lakelens.hvd.callbacks` and the like as the same module as that of the package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds modules below `lakelens.hvd` alone."""
        return ModuleSpec(fullname, self) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Imports the module by its own name."""
        module = importlib.import_module(_TARGET + spec.name.removeprefix(__name__))
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives it back its own specification, which the import of the alias has replaced."""
        module.__spec__ = self._own


sys.meta_path.insert(0, _Alias())
sys.modules[__name__] = importlib.import_module(_TARGET)
