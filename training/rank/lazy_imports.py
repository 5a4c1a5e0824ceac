"""Puts off, in ranks and scoring workers, what Keras imports and neither uses: a third of TensorFlow's import.

Keras 3 imports scikit-learn for `keras.wrappers` and matplotlib for `keras.visualization` wherever they are installed.
Here these modules load when something of them is first used, so that nothing is missing. Importlib's own LazyLoader
would not do: with it a module loads at any look at it, and TensorFlow's AutoGraph asks every module for its `__file__`.
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
# One for all: modules that are put off import one another, and their own locks could wait for each other.
_LOADING = threading.RLock()
_LOADER = "__lakelens_loader__"


class _Waiting(ModuleType):
    """A module with its name, file and path only, until it is asked for something else."""

    def __getattr__(self, name: str) -> Any:
        if not self._load():  # what loads it looks at it: as in any circle of imports
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet: it is being imported")
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        return dir(self) if self._load() else list(self.__dict__)

    def _load(self) -> bool:
        """Makes it the module that it stands for; tells whether it is, and not still on its way in this thread."""
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
    """Gives a module that waits, with the loader that it waits for."""

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
    """Finds the modules above where Python finds them, and gives them a loader that waits."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the spec of a module that is put off; None leaves any other to the finders after this one."""
        if name not in _PUT_OFF:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """Puts them off in this process from now on; modules that are loaded already stay."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Lets a block import without a search for garbage, and spares what it has imported every later one.

    Modules live as long as the process; Python would walk through all of them again and again while more come.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
