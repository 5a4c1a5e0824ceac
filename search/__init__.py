"""Search over hyperparameters: which trials to start, continue and stop. Start: `lakelens.search(config)`, `resume`.

A searcher is a pure state machine: events go in, operations come out, and the same events give the same operations. It
knows no clock, no file and no Spark; its caller runs the trials and reports what happened:

    create_searcher -> start() -> [Create] -> train -> validated() -> [Continue | Stop | Create] -> ... -> finished
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .create import create_searcher, preview
from .searchers.base import Continue, Create, Operation, SearchMethod, Stop

if TYPE_CHECKING:
    from .running.result import SearchResult
    from .running.run import resume

__all__ = [
    "Continue",
    "Create",
    "Operation",
    "SearchMethod",
    "SearchResult",
    "Stop",
    "create_searcher",
    "preview",
    "resume",
]

# Training comes with these; the searchers need nothing of it.
_HOME_OF = {"SearchResult": ".running.result", "resume": ".running.run"}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'lakelens.search' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name], __name__), name)


class _CallableModule(ModuleType):
    """Lets `lakelens.search(...)` be a call, as `lakelens.train(...)` is."""

    def __call__(self, *args: Any, **options: Any) -> SearchResult:
        from .running.run import search

        return search(*args, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles it by its name, as modules are: cloudpickle knows them by their exact type."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _CallableModule
