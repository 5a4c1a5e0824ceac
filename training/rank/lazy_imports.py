"""Delays, in ranks and scoring workers, imports of Keras that neither uses: a third of TensorFlow's import time.

Keras 3 imports scikit-learn for `keras.wrappers` and matplotlib for `keras.visualization` wherever they are installed.
Here these modules load on first use. Importlib's LazyLoader does not help: it loads a module at any attribute access,
and TensorFlow's AutoGraph reads `__file__` of every module.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_PUT_OFF = frozenset(
    {
        "keras._tf_keras.keras.visualization",
        "keras._tf_keras.keras.wrappers",
        "keras.src.visualization",
        "keras.visualization",
        "keras.wrappers",
    }
)
# One lock for all: delayed modules import one another, and separate locks could deadlock.
_LOADING = threading.RLock()
_LOADER = "__lakelens_loader__"


class _Waiting(ModuleType):
    """A module with its name, file and path only, which loads on access to any other attribute."""

    def __getattr__(self, name: str) -> Any:
        if not self._load():  # the loader accesses it while it loads, as in circular imports
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet: it is being imported")
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        return dir(self) if self._load() else list(self.__dict__)

    def _load(self) -> bool:
        """Loads the module; returns whether it is loaded, and not still loading in this thread."""
        with _LOADING:
            loader = self.__dict__.pop(_LOADER, None)
            if loader is not None:
                try:
                    loader.exec_module(self)
                except BaseException:
                    self.__dict__[_LOADER] = loader
                    raise
                self.__class__ = ModuleType  # type: ignore[assignment]  # as importlib.util.LazyLoader does
            return type(self) is ModuleType


class _Loader(Loader):
    """Wraps a module's loader so that loading is delayed."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Makes the module; importlib gives it the attributes of its spec."""
        return _Waiting(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leaves the module as it is."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        module.__dict__[_LOADER] = self._loader


class _Finder:
    """Finds the modules above as Python does, and gives them a delaying loader."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the spec of a delayed module; None leaves any other to the finders after this one."""
        if name not in _PUT_OFF:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """Delays these modules in this process from now on; loaded modules stay."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Disables garbage collection while the block imports, and excludes the imported objects from later collections.

    Modules live as long as the process; Python would scan all of them again and again while more are imported.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
