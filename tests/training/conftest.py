"""Makes the helper modules beside the tests importable: pytest's importlib mode puts no folder on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

import lakelens.training.feed  # noqa: F401  before any test module imports Petastorm

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets the ranks of a job run functions of the test's module, which they cannot import."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
