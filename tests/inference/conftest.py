"""A checkpoint and image tables for the tests of inference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

# pytest imports test files by path; what they share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))

from colours import colour_model, save
from model_store import Store


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint of the colour model."""
    return save(colour_model(), tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """An MLflow store for the runs of a module."""
    return Store(tmp_path_factory.mktemp("store"))
