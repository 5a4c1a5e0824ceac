"""Puts off, in a rank's process, what Keras imports and training does not use: a third of TensorFlow's import.

Keras 3 imports scikit-learn for `keras.wrappers` and matplotlib for `keras.visualization` wherever they are installed.
Here these modules load when something of them is first used (importlib's own LazyLoader), so that nothing is missing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_PUT_OFF = frozenset(
    {
        "keras._tf_keras.keras.visualization",
        "keras._tf_keras.keras.wrappers",
        "keras.src.visualization",
        "keras.visualization",
        "keras.wrappers",
    }
)


class _Finder:
    """Finds the modules above where Python finds them, and gives them a loader that waits."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Gives the spec of a module that is put off; None leaves any other to the finders after this one."""
        if name not in _PUT_OFF:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def install() -> None:
    """Puts them off in this process from now on; modules that are loaded already stay."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
