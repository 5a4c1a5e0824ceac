"""Rules of the columns that an evaluation of detection reads."""

from __future__ import annotations

import json

import pytest

from lakelens.errors import NotAnImageTableError
from lakelens.inference.evaluation.detection_rows import _matched, truths_sql

pytestmark = pytest.mark.unit


def boxes_of(*names: str) -> str:
    """Delta's type of an array of boxes with these fields."""
    kinds = {"label": "integer", "label_name": "string", "difficult": "boolean"}
    fields = [{"name": name, "type": kinds.get(name, "double"), "nullable": True, "metadata": {}} for name in names]
    struct = {"type": "struct", "fields": fields}
    return json.dumps({"type": "array", "elementType": struct, "containsNull": True})


@pytest.mark.parametrize("declared", ["string", boxes_of("xmin", "ymin", "xmax", "ymax"), boxes_of("label")])
def test_a_column_without_classes_or_corners_has_no_boxes(declared):
    assert truths_sql("annotations", declared) is None


BOX = {"label": 0, "label_name": "red", "xmin": 0.0, "ymin": 0.0, "xmax": 8.0, "ymax": 8.0, "difficult": None}


def test_an_object_whose_difficulty_is_unknown_counts():
    made = _matched("file:/a.png", None, [BOX])
    assert (made["objects"].tolist(), made["matches"]) == ([0], [])


@pytest.mark.parametrize("name", ["label", "xmin", "ymax"])
def test_an_object_without_a_class_or_a_corner_is_refused_by_its_image(name):
    with pytest.raises(NotAnImageTableError, match=f"file:/a.png: a box in column 'annotations' has null as {name}"):
        _matched("file:/a.png", [], [BOX, {**BOX, name: None}])
