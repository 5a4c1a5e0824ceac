"""The list of files in quarantine, without a JVM."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from version_tables import images, write

from lakelens import ImageTable
from lakelens.errors import InvalidArgumentError, NotADeltaTableError
from lakelens.etl.model import schema

pytestmark = pytest.mark.unit

NOON = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)


def bad(path: str, reason: str, batch: str) -> dict[str, object]:
    row = dict.fromkeys(schema.QUARANTINE.names)
    stamp = {"source_length": 7, "source_modified": NOON}
    return {**row, **stamp, "path": path, "reason": reason, "error": f"{path} is bad", "batch_id": batch}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    place = tmp_path / "t"
    write(place, images(cat=["c1"]))
    for rows in ([bad("b", "empty", "one"), bad("a", "truncated", "one")], [bad("c", "truncated", "two")]):
        batch = pa.Table.from_pylist(rows, schema=schema.QUARANTINE)
        write_deltalake(f"{place}_quarantine", batch, mode="append")
    return place


def test_files_are_listed_by_path_with_reason_error_size_and_batch(table: Path) -> None:
    found = ImageTable(None, table).quarantine()
    assert [(file.path, file.reason, file.batch_id) for file in found.files] == [
        ("a", "truncated", "one"),
        ("b", "empty", "one"),
        ("c", "truncated", "two"),
    ]
    first = found.files[0]
    assert (first.error, first.source_length, first.source_modified) == ("a is bad", 7, NOON)
    assert (found.reasons, found.count) == ({"truncated": 2, "empty": 1}, 3)


def test_times_that_spark_has_written_without_a_zone_have_one(table: Path) -> None:
    row = {**bad("d", "empty", "three"), "source_modified": NOON.replace(tzinfo=None)}
    kinds = schema.QUARANTINE
    place = kinds.get_field_index("source_modified")
    kinds = kinds.set(place, kinds.field(place).with_type(pa.timestamp("us")))
    file = next(Path(f"{table}_quarantine").glob("*.parquet"))
    pq.write_table(pa.Table.from_pylist([row], schema=kinds), file)
    found = {item.source_modified for item in ImageTable(None, table).quarantine().files}
    assert found == {NOON}


def test_filters_by_batch_and_reason_count_what_they_let_through_and_a_limit_cuts_the_list_alone(table: Path) -> None:
    assert ImageTable(None, table).quarantine(batch_id="one").reasons == {"truncated": 1, "empty": 1}
    both = ImageTable(None, table).quarantine(batch_id="one", reason="truncated")
    assert [file.path for file in both.files] == ["a"]
    assert ImageTable(None, table).quarantine(batch_id="never").count == 0
    assert ImageTable(None, table).quarantine(reason="timeout").count == 0
    with pytest.raises(InvalidArgumentError, match=r"'blurred' is not a reason.*decoder_crashed.*image_missing"):
        ImageTable(None, table).quarantine(reason="blurred")
    found = ImageTable(None, table).quarantine(limit=1)
    assert ([file.path for file in found.files], found.count) == (["a"], 3)
    with pytest.raises(InvalidArgumentError, match="limit"):
        ImageTable(None, table).quarantine(limit=-1)


def test_a_table_without_a_bad_file_has_an_empty_list_and_no_table_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "t", images(cat=["c1"]))
    assert ImageTable(None, tmp_path / "t").quarantine().count == 0
    with pytest.raises(NotADeltaTableError, match="nothing"):
        ImageTable(None, tmp_path / "nothing").quarantine()
