"""Search over hyperparameters: which trials to start, continue and stop.

A searcher is a pure state machine: events go in, operations come out, and its whole state is one JSON object. It knows
no clock, no file and no Spark; whoever runs the trials tells it what happened:

    create_searcher -> start() -> [Create] -> train -> validated() -> [Continue | Stop | Create] -> ... -> finished
"""

from __future__ import annotations

from .create import create_searcher, restore_searcher
from .operations import Continue, Create, Operation, Stop
from .preview import preview
from .searchers.base import Searcher

__all__ = [
    "Continue",
    "Create",
    "Operation",
    "Searcher",
    "Stop",
    "create_searcher",
    "preview",
    "restore_searcher",
]
