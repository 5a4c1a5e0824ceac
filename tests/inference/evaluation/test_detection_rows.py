"""Rules of the columns that an evaluation of detection reads."""

from __future__ import annotations

import json

import pytest

from lakelens.inference.evaluation.detection_rows import TRUTHS, truths_sql

pytestmark = pytest.mark.unit


def boxes_of(*names: str) -> str:
    """Delta's type of an array of boxes with these fields."""
    kinds = {"label": "integer", "label_name": "string", "difficult": "boolean"}
    fields = [{"name": name, "type": kinds.get(name, "double"), "nullable": True, "metadata": {}} for name in names]
    struct = {"type": "struct", "fields": fields}
    return json.dumps({"type": "array", "elementType": struct, "containsNull": True})


def test_fields_of_boxes_are_found_by_name_and_missing_ones_are_null():
    assert truths_sql("annotations", boxes_of("ymax", "ymin", "area", "xmax", "xmin", "label")) == (
        "cast(transform(`annotations`, box -> if(box is null, null, named_struct('label', box.label, 'label_name', "
        "null, 'xmin', box.xmin, 'ymin', box.ymin, 'xmax', box.xmax, 'ymax', box.ymax, 'difficult', null))) AS "
        f"{TRUTHS})"
    )


@pytest.mark.parametrize("declared", ["string", boxes_of("xmin", "ymin", "xmax", "ymax"), boxes_of("label")])
def test_a_column_without_classes_or_corners_has_no_boxes(declared):
    assert truths_sql("annotations", declared) is None
