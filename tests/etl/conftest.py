"""Class folders made by code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# pytest imports test files by path; what they share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))

from etl_pictures import write_image

from lakelens.etl.commit.commit import ENGINE_VARIABLE, PUBLIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs what is marked with `both_engines` on Delta's public writers too, as long tests."""
    if "spark" in metafunc.fixturenames and metafunc.definition.get_closest_marker("both_engines"):
        engines = [pytest.param("", id=pytest.HIDDEN_PARAM), pytest.param(PUBLIC, marks=pytest.mark.long)]
        metafunc.parametrize("spark", engines, indirect=True, scope="session")


@pytest.fixture(scope="session")
def spark(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session that all tests share; its ingests commit as `LAKELENS_COMMIT_ENGINE` says, or as the test is run."""
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request, "param", ""):
            patch.setenv(ENGINE_VARIABLE, request.param)
        yield spark


@pytest.fixture
def one_commit(spark: SparkSession) -> None:
    """Skips a test where a new class takes a commit of its own."""
    if os.environ.get(ENGINE_VARIABLE) == PUBLIC:
        pytest.skip("holds for Delta's own transaction: public writers set a property in a commit of its own")


@pytest.fixture
def class_folders(tmp_path: Path) -> Callable[..., Path]:
    """Gives a function that writes class folders: `class_folders(ak47=5, cat=3)`."""

    def make(name: str = "source", **counts: int) -> Path:
        root = tmp_path / name
        for index, (label, count) in enumerate(counts.items()):
            for number in range(count):
                write_image(root / label / f"{number:04d}.jpg", seed=1000 * index + number)
        return root

    return make
