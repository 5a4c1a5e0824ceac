"""The page about the architecture names the rooms and files that there are, in the order of their imports."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
HALLS = ("jobs", "search", "inference", "training", "etl", "lakelens")


def layers_of(hall: str) -> list[set[str]]:
    """The layers of import-linter's contract about a hall, from the top."""
    text = (ROOT / "pyproject.toml").read_text()
    contract = text.split(f'containers = ["lakelens.{hall}"]', 1)[1]
    layers = re.search(r"^layers = (\[.*?\])$", contract, re.MULTILINE | re.DOTALL)
    assert layers is not None
    return [set(re.split(r" [|:] ", layer)) for layer in ast.literal_eval(layers[1])]


def drawn_rooms() -> dict[str, list[str]]:
    """The rooms of each hall in the picture, row by row and from left to right."""
    picture = ElementTree.parse(ROOT / "docs" / "architecture.svg")  # noqa: S314  our own file
    rooms: dict[str, list[str]] = {}
    for hall in picture.iterfind(f"{SVG}g"):
        texts = hall.iterfind(f"{SVG}text[@class='room']")
        placed = sorted((float(text.attrib["y"]), float(text.attrib["x"]), text.text or "") for text in texts)
        rooms[hall.attrib["id"]] = [name for _, _, name in placed]
    return rooms


def test_the_picture_shows_every_room_and_no_other() -> None:
    drawn = drawn_rooms()
    assert tuple(drawn) == HALLS
    for hall, rooms in drawn.items():
        packages = {folder.parent.name for folder in (ROOT / hall).glob("*/__init__.py")}
        assert packages <= set(rooms), hall
        assert [room for room in rooms if not any((ROOT / hall / f"{room}{end}").exists() for end in ("", ".py"))] == []


@pytest.mark.parametrize("hall", ["etl", "training", "inference"])
def test_the_picture_has_the_rooms_in_the_order_of_their_imports(hall: str) -> None:
    layers = layers_of(hall)
    order = [next(at for at, layer in enumerate(layers) if room in layer) for room in drawn_rooms()[hall]]
    assert order == sorted(order)
    assert set(drawn_rooms()[hall]) == set().union(*layers)


@pytest.mark.parametrize("hall", ["etl", "training"])
def test_the_docstring_of_a_hall_has_its_rooms_in_the_order_of_their_imports(hall: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / hall / "__init__.py").read_text())) or ""
    rooms = text.split("those to its right:", 1)[1]
    assert [set(layer.replace(",", " ").split()) for layer in rooms.split(">")] == layers_of(hall)


def test_every_file_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([\w/]+\.py)`", page)
    known = [path.as_posix() for hall in HALLS for path in (ROOT / hall).rglob("*.py")]
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []
