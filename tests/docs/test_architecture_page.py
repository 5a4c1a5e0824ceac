"""The page about the architecture names the packages and files of the checkout."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("jobs", "search", "inference", "training", "etl", "lakelens")
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def layers_of(folder: str) -> list[set[str]]:
    """The layers of import-linter's contract about a folder, from the top."""
    text = (ROOT / "pyproject.toml").read_text()
    contract = text.split(f'containers = ["lakelens.{folder}"]', 1)[1]
    layers = re.search(r"^layers = (\[.*?\])$", contract, re.MULTILINE | re.DOTALL)
    assert layers is not None
    return [set(re.split(r" [|:] ", layer)) for layer in ast.literal_eval(layers[1])]


def test_the_page_has_a_line_for_every_package() -> None:
    lines = re.findall(r"^\| `([\w/]+)` \| ", PAGE, re.MULTILINE)
    found = {
        path.parent.relative_to(ROOT).as_posix() for name in FOLDERS for path in (ROOT / name).rglob("__init__.py")
    }
    assert len(lines) == len(set(lines))
    assert set(lines) == found - {"training"}


@pytest.mark.parametrize("folder", ["etl", "training"])
def test_the_docstring_of_a_folder_has_its_packages_in_the_order_of_their_imports(folder: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text())) or ""
    packages = text.split("those to its right:", 1)[1]
    assert [set(layer.replace(",", " ").split()) for layer in packages.split(">")] == layers_of(folder)


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)`", PAGE)
    assert named
    assert [name for name in named if not (ROOT / name).is_file() and name != "__init__.py"] == []
