"""Rules of the table that is scored: its version stays, and its files are those that an ingest has recorded."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tracked_runs import tracked

from lakelens.inference.scoring.source import FRAME_TYPE, ScoredTable, frame_sql, source_sql
from lakelens.log.snapshot import open_snapshot
from lakelens.table import Table

pytestmark = pytest.mark.unit

DIGEST = "d" * 64
SCORED = "score-dddddddddddd-0"


@pytest.fixture
def table(tmp_path) -> str:
    write_deltalake(str(tmp_path / "table"), pa.table({"path": ["a"]}))
    return str(tmp_path / "table")


def protected(table):
    return ScoredTable(None, open_snapshot(Table.of(table))).protected(DIGEST)


def test_a_scoring_that_fails_leaves_the_version_to_another_of_the_same_model_that_runs(table):
    failing, lasting = protected(table), protected(table)
    failing.__enter__()
    lasting.__enter__()
    assert not failing.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert list(tracked(table)) == [0]
    lasting.__exit__(None, None, None)
    assert tracked(table) == {0: [SCORED]}


def test_a_failed_scoring_protects_nothing_unless_one_before_it_has_succeeded(table):
    for left in ({}, {0: [SCORED]}):
        with pytest.raises(KeyboardInterrupt), protected(table):
            raise KeyboardInterrupt
        assert tracked(table) == left
        with protected(table):
            assert list(tracked(table)) == [0]
        assert tracked(table) == {0: [SCORED]}


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
