"""Class folders made by code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# pytest imports test files by path; what they share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))

from etl_pictures import write_image


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
