"""Rules of the SQL that finds what a table records of its source files."""

from __future__ import annotations

import json

import pytest

from lakelens.inference.scoring.source import FRAME_TYPE, frame_sql, source_sql

pytestmark = pytest.mark.unit


def struct_of(*names):
    """Delta's type of a struct with these fields."""
    fields = [{"name": name, "type": "string" if name == "resize" else "integer"} for name in names]
    return json.dumps({"type": "struct", "fields": fields})


OURS = {"source": struct_of("orientation", "height", "width", "resize"), "width": "integer", "height": "integer"}


def test_the_fields_of_a_file_are_read_by_name():
    source = (
        "cast(named_struct('width', source.width, 'height', source.height, 'orientation', source.orientation, "
        "'resize', source.resize) AS STRUCT<width: INT, height: INT, orientation: INT, resize: STRING>)"
    )
    assert source_sql(OURS, "image") == source
    assert frame_sql(OURS, "image") == (
        f"cast(named_struct('width', width, 'height', height, 'source', {source}) AS {FRAME_TYPE})"
    )


@pytest.mark.parametrize(
    ("declared", "image_column"),
    [
        ({}, "image"),
        ({**OURS, "source": "string"}, "image"),
        ({**OURS, "source": struct_of("width", "height")}, "image"),
        ({"source": OURS["source"]}, "image"),
        (OURS, "thumbnail"),
    ],
    ids=["no column", "camera", "other fields", "no sizes", "another image"],
)
def test_another_column_of_that_name_is_no_file_of_an_ingest(declared, image_column):
    assert source_sql(declared, image_column).startswith("cast(null AS")
    assert frame_sql(declared, image_column).startswith("cast(null AS")
