"""The value that names a table, its store and its version."""

from __future__ import annotations

import pickle
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pytest

import lakelens
from lakelens.errors import ConfigurationError, InvalidArgumentError, NotADeltaTableError
from lakelens.table import Table, version_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("given", "location", "version"),
    [
        ("photos@3", "{here}/photos", 3),
        ("photos/@3", "{here}/photos", 3),
        ("photos@golden", "{here}/photos", "golden"),
        ("photos@2026-03-01T12:00", "{here}/photos", "2026-03-01T12:00"),
        ("photos@latest", "{here}/photos", None),
        ("photos", "{here}/photos", None),
        ("main.vision.photos@0", "main.vision.photos", 0),
        ("/data/me@home/photos", "/data/me@home/photos", None),
        ("abfss://c@a.dfs.core.windows.net/photos@4", "abfss://c@a.dfs.core.windows.net/photos", 4),
        ("abfss://c@a.dfs.core.windows.net", "abfss://c@a.dfs.core.windows.net", None),
        (Path("photos@5"), "{here}/photos", 5),
    ],
)
def test_a_table_is_named_with_or_without_its_version(monkeypatch, tmp_path, given, location, version) -> None:
    monkeypatch.chdir(tmp_path)
    table = Table.of(given)
    assert (table.location, table.version) == (location.format(here=tmp_path), version)


def test_a_folder_that_exists_is_a_table_as_it_is_spelled(tmp_path: Path) -> None:
    (tmp_path / "photos@2").mkdir()
    assert Table.of(tmp_path / "photos@2").location == str(tmp_path / "photos@2")
    assert Table.of(f"{tmp_path}/photos@2@7") == Table.of(tmp_path / "photos@2", 7)


def test_the_same_version_may_be_named_twice() -> None:
    assert Table.of("photos@1", 1) == Table.of("photos@1", "1") == Table.of("photos@1")
    assert Table.of("photos@latest", None) == Table.of("photos")


@pytest.mark.parametrize(
    ("version", "meant"),
    [
        (np.int64(1), 1),
        ("7", 7),
        (" latest ", None),
        (None, None),
        (date(2026, 3, 1), datetime(2026, 3, 1)),
        (datetime(2026, 3, 1, 12), datetime(2026, 3, 1, 12)),
        ("golden", "golden"),
    ],
)
def test_a_version_is_a_number_a_time_a_pin_or_the_latest(version: object, meant: object) -> None:
    assert version_of(version) == meant


@pytest.mark.parametrize("version", [True, 1.0, [1], b"1", np.float64(1)])
def test_a_version_of_another_type_is_refused(version: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"version=.*give a number, a time"):
        Table.of("photos", version)


def test_two_versions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'photos@1' names a version, and version=2 does too"):
        Table.of("photos@1", 2)
    keys = {"entrypoint": "m:T", "data": {"table": "photos@1", "version": 2}}
    with pytest.raises(ConfigurationError, match="names a version, and version 2 does too"):
        lakelens.ExperimentConfig.read(keys)


def test_a_version_is_refused_where_a_table_is_meant_with_all_its_versions() -> None:
    with pytest.raises(InvalidArgumentError, match=r"ImageTable .* names version 1; .*version="):
        lakelens.ImageTable(None, "photos@1")


def test_a_table_takes_other_options_and_versions_and_shows_no_secret() -> None:
    table = Table.of("s3://bucket/photos/", 1, {"aws_secret_access_key": "hidden"})
    assert Table.of(table) == pickle.loads(pickle.dumps(table)) == table
    assert (Table.of(table, 2).version, table.at("latest").version) == (2, None)
    assert "hidden" not in f"{table!r} {table}"
    assert str(table) == "s3://bucket/photos@1"
    assert table.file("split=a/b.parquet") == "s3://bucket/photos/split=a/b.parquet"


def test_a_table_knows_its_uri(tmp_path: Path) -> None:
    assert Table.of(tmp_path / "a b").uri == f"file://{tmp_path}/a%20b"
    with pytest.raises(NotADeltaTableError, match=r"a\.b is a catalog name; give the table's path"):
        _ = Table.of("a.b").uri
