"""Makes the helper modules beside the tests importable: pytest's importlib mode puts no folder on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import lakelens.training.feed  # noqa: F401  before any test module imports Petastorm

sys.path.insert(0, str(Path(__file__).parent))

from in_turn import in_turn
from leftovers import leaves_nothing

from lakelens.training.runner.runner import HorovodRunner


@pytest.fixture(scope="module")
def functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets the ranks of a job run functions of the test's module, which they cannot import."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="session")
def two_ranks(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What `on_two_ranks` of each module whose tests ask for it gives on rank 0 of two: one launch for all of them.

    A module that says `ENDS_THE_WORLD` comes last.
    """
    asking = [item for item in request.session.items if "two_ranks" in getattr(item, "fixturenames", ())]
    modules = {item.module for item in asking if isinstance(item, pytest.Function)}
    ordered = sorted(modules, key=lambda module: (hasattr(module, "ENDS_THE_WORLD"), module.__name__))
    functions = {module.__name__: module.on_two_ranks for module in ordered}
    for module in ordered:
        cloudpickle.register_pickle_by_value(module)
    try:
        with leaves_nothing() as watch:
            env = {**watch.env, "TF_CPP_MIN_LOG_LEVEL": "2"}
            found: dict[str, Any] = HorovodRunner(np=-2, env=env).run(in_turn, functions=functions)
    finally:
        for module in ordered:
            cloudpickle.unregister_pickle_by_value(module)
    return found
