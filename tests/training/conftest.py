"""Makes the helper modules beside the tests importable: pytest's importlib mode puts no folder on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

import lakelens  # noqa: F401  before any test module imports Petastorm

sys.path.insert(0, str(Path(__file__).parent))

from coloured_tables import coloured_table
from feed_tables import write_layout
from rank_pair import RankPair


@pytest.fixture(scope="module")
def functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets the ranks of a job run functions of the test's module, which they cannot import."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Coloured squares; a module that changes its table makes one of its own."""
    return coloured_table(tmp_path_factory.mktemp("data") / "squares")


@pytest.fixture(scope="session")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """91 rows in files of 50, 7, 1 and 33, row groups of at most 9."""
    return write_layout(tmp_path_factory.mktemp("feed") / "uneven", [50, 7, 1, 33], row_group_rows=9)


_PAIR = RankPair()


@pytest.fixture(scope="session")
def two_ranks() -> RankPair:
    """Two ranks that run functions; they stay while tests ask for them one after another."""
    return _PAIR


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Ends the two ranks before the first test that does not ask for them."""
    if nextitem is None or "two_ranks" not in getattr(nextitem, "fixturenames", ()):
        _PAIR.end()
