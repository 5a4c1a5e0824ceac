"""One version of a Delta table without a JVM: files and rows, paths as they are, refusals by name."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from snapshots import open_snapshot
from version_tables import change_log

from lakelens.errors import (
    InvalidArgumentError,
    UnsupportedTableFeatureError,
    VersionNotFoundError,
    VersionUnreadableError,
)
from lakelens.locations import locate
from lakelens.log.entries import read_commits
from lakelens.log.opening import uri_for_delta_rs
from lakelens.log.snapshot import DataFiles
from lakelens.table import Table

pytestmark = pytest.mark.unit


def rows(first: int, count: int, split: str | None = "train") -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count)), "split": pa.array([split] * count, pa.string())})


def write(location: Path, table: pa.Table) -> None:
    write_deltalake(str(location), table, mode="append", partition_by=["split"])


def test_a_version_is_its_active_files_with_their_rows_and_partitions(tmp_path):
    write(tmp_path / "t", rows(0, 5))
    write(tmp_path / "t", rows(5, 3, None))
    first, second = open_snapshot(tmp_path / "t", 0), open_snapshot(tmp_path / "t")
    assert (first.version, first.rows, len(first.files)) == (0, 5, 1)
    assert (second.version, second.rows, second.partition_columns) == (1, 8, ("split",))
    by_split = {second.files.partitions["split"].at(i): int(second.files.rows[i]) for i in range(2)}
    assert by_split == {"train": 5, None: 3}
    assert second.schema == {"id": "long", "split": "string"}
    assert all(Path(second.file_location(i)).is_file() for i in range(2))
    assert pickle.loads(pickle.dumps(second)).files.paths == second.files.paths


@pytest.mark.parametrize("name", ["a dir", "100%", "é"])
def test_paths_with_spaces_percent_signs_and_other_letters(tmp_path, name):
    (tmp_path / "plain").mkdir()
    write(tmp_path / "plain", rows(0, 4, "50% é/x"))
    (tmp_path / "plain").rename(tmp_path / name)
    snapshot = open_snapshot(tmp_path / name)
    assert snapshot.location == str(tmp_path / name)
    assert Path(snapshot.file_location(0)).is_file()
    assert snapshot.files.partitions["split"].at(0) == "50% é/x"


@pytest.mark.parametrize(
    "location",
    [
        "s3://images/a#b",
        "gs://images/a?b",
        "abfss://images/a%20b",
        "s3://images/a%2Fb",
        "/images/a%20b",
        "/a\\b/t",
        "/a\tb/t",
    ],
)
def test_a_table_whose_name_delta_rs_would_take_for_another_is_refused(location):
    with pytest.raises(InvalidArgumentError, match=rf"{re.escape(location)}: .* another table opened; write"):
        open_snapshot(location)


@pytest.mark.parametrize(
    ("location", "wanted"),
    [
        ("gs://images/50% of é+&", "gs://images/50% of é+&"),
        ("gcs://images/t", "gs://images/t"),
        ("s3a://images/t", "s3a://images/t"),
    ],
)
def test_delta_rs_is_given_the_uri_of_a_table_in_a_store_and_the_scheme_that_takes_options(location, wanted):
    assert uri_for_delta_rs(Table.of(location)) == wanted


def test_absolute_paths_of_shallow_clones_stand_for_themselves():
    assert locate("/clone", "file:/source/part-0.parquet") == "/source/part-0.parquet"
    assert locate("/clone", "s3://bucket/part-0.parquet") == "s3://bucket/part-0.parquet"
    assert locate("s3://bucket/t/", "split=x/part-0.parquet") == "s3://bucket/t/split=x/part-0.parquet"


def test_versions_survive_a_checkpoint_and_a_cleaned_log(tmp_path):
    for n in range(4):
        write(tmp_path / "t", rows(n, 1))
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    for n in range(3):
        (tmp_path / "t" / "_delta_log" / f"{n:020d}.json").unlink()
    assert open_snapshot(tmp_path / "t").rows == 4
    with pytest.raises(VersionNotFoundError, match=r"version 1 does not exist or can no longer be rebuilt; it has"):
        open_snapshot(tmp_path / "t", 1)


def test_a_damaged_commit_is_refused_by_its_file(tmp_path):
    for n in range(2):
        write(tmp_path / "t", rows(n, 1))
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").write_text('{"add"')
    with pytest.raises(VersionUnreadableError, match=rf"{0:020d}\.json is damaged .*; put it back from a copy"):
        list(read_commits(Table.of(tmp_path / "t"), [0, 1]))


def test_a_fork_opens_a_table_unless_the_parent_has_opened_one(tmp_path):
    write(tmp_path / "t", rows(0, 1))
    code = """
import os, sys
from lakelens.errors import StoreError
from lakelens.ledger.store import read
from lakelens.log.snapshot import open_snapshot
from lakelens.table import Table
for parent in (lambda table: None, open_snapshot):
    parent(Table.of(sys.argv[1]))
    if os.fork() == 0:
        for use in (open_snapshot, read):
            try:
                use(Table.of(sys.argv[1]))
                print("opened", flush=True)
            except StoreError as error:
                print(error, flush=True)
        os._exit(0)
    os.wait()
"""
    said = subprocess.run([sys.executable, "-c", code, tmp_path / "t"], capture_output=True, text=True, timeout=60)
    first, second, *refused = said.stdout.splitlines()
    assert (first, second, len(refused)) == ("opened", "opened", 2), said.stderr
    assert all("is the fork of one that has used deltalake" in line for line in refused)


def test_a_feature_that_plain_parquet_would_get_wrong_is_refused_by_name(tmp_path):
    write(tmp_path / "t", rows(0, 2))
    features = {"readerFeatures": ["variantType"], "writerFeatures": ["variantType"]}
    change_log(tmp_path / "t", 0, "protocol", minReaderVersion=3, minWriterVersion=7, **features)
    with pytest.raises(UnsupportedTableFeatureError, match="variantType"):
        open_snapshot(tmp_path / "t")


def test_deleted_rows_are_kept_by_file_and_known_by_their_number_in_it():
    one = np.ones(3, dtype=np.int64)
    files = DataFiles(("a", "b", "c"), one, one, deleted={"b": np.array([1, 4, 5])})
    assert [files.kept(1, first, 3).tolist() for first in (0, 3)] == [[True, False, True], [True, False, False]]
    assert files.kept(0, 0, 2).all()
    assert files.take(np.array([2, 1])).deleted_rows(1).tolist() == [1, 4, 5]
    assert not files.take(np.array([0])).deleted
    assert pickle.loads(pickle.dumps(files)).deleted["b"].tolist() == [1, 4, 5]
