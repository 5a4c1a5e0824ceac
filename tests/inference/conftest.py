"""A checkpoint and image tables for the tests of inference."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

# pytest imports test files by path; what they share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))

from colours import TABLE_DDL, colour_model, save, write_table


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint of the colour model."""
    return save(colour_model(), tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def make_table(spark: Any, tmp_path: Path) -> Callable[..., Path]:
    """Makes an image table of the given rows."""

    def make(rows: Iterable[tuple], name: str = "images", ddl: str = TABLE_DDL) -> Path:
        path = tmp_path / name
        write_table(spark, path, list(rows), ddl)
        return path

    return make
