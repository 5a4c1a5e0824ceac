"""Gives a rank `lakelens.hvd` where its function imports Horovod's Keras modules, which do not work with Keras 3."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_OLD = ("horovod.tensorflow.keras", "horovod.keras")
_NEW = "lakelens.training.distributed"


class _Names(MetaPathFinder, Loader):
    """Imports `horovod.keras.callbacks` and the like as the same modules as those of `lakelens.hvd`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds Horovod's Keras modules alone."""
        is_old = any(fullname == old or fullname.startswith(f"{old}.") for old in _OLD)
        return ModuleSpec(fullname, self) if is_old else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Imports the module by its own name."""
        old = next(old for old in _OLD if spec.name.startswith(old))
        module = importlib.import_module(_NEW + spec.name.removeprefix(old))
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives it back its own specification, which the import of the old name has replaced."""
        module.__spec__ = self._own


def install() -> None:
    """Replaces these modules in imports of this process from now on."""
    if not any(isinstance(finder, _Names) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Names())
