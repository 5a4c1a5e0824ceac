"""A VACUUM of what Spark cloned without copying."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from delta_rows import delta_rows
from deltalake import write_deltalake
from snapshots import open_snapshot

from lakelens import ImageTable


def files_of(table: Path) -> list[Path]:
    snapshot = open_snapshot(table)
    return [Path(snapshot.file_location(i)) for i in range(len(snapshot.files))]


@pytest.mark.spark
def test_a_vacuum_of_a_shallow_clone_by_spark_takes_the_clones_own_files_alone(spark, tmp_path: Path) -> None:
    source, clone = tmp_path / "source", tmp_path / "clone"
    write_deltalake(str(source), pa.table({"id": range(10)}))
    spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{source}`").collect()
    write_deltalake(str(clone), pa.table({"id": range(10, 20)}), mode="append")
    (own,) = [path for path in files_of(clone) if path.is_relative_to(clone)]
    theirs = files_of(source)
    assert [entry.rows for entry in ImageTable(None, clone).history()] == [20, 10]
    write_deltalake(str(clone), pa.table({"id": [20]}), mode="overwrite")  # removes both from the log
    assert ImageTable(None, clone).vacuum(0, allow_short_retention=True).files == (own.name,)
    assert not own.exists()
    assert all(path.exists() for path in theirs)
    assert sorted(row["id"] for row in delta_rows(source)) == list(range(10))
