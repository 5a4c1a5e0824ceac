"""Paths of locations, names in folders, and options that stay in the environment; no store is asked."""

from __future__ import annotations

import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.stores.clients import delta_options
from lakelens.stores.data_files import by_folder, local_form, names_in, read_bytes

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/t", "/data/t"),
        ("dbfs:/tables/t", "/dbfs/tables/t"),
        ("dbfs:///tables/t", "/dbfs/tables/t"),
        ("dbfs:/Volumes/main/default/files/t", "/Volumes/main/default/files/t"),
        ("s3://bucket/t", None),
        ("s3a://bucket/t", None),
        ("gs://bucket/t", None),
        ("abfss://container@account.dfs.core.windows.net/t", None),
    ],
)
def test_what_is_on_a_disk_has_a_path_and_dbfs_is_where_databricks_mounts_it(location, path):
    assert local_form(location) == path


def test_options_may_stay_in_the_environment(monkeypatch):
    monkeypatch.setenv("LAKE_SECRET", "s3cr3t")
    options = {"aws_secret_access_key": "env:LAKE_SECRET", "aws_region": "us-east-1"}
    assert delta_options(options) == {"aws_secret_access_key": "s3cr3t", "aws_region": "us-east-1"}
    monkeypatch.delenv("LAKE_SECRET")
    with pytest.raises(InvalidArgumentError, match=r"aws_secret_access_key is to be .* variable LAKE_SECRET"):
        delta_options(options)


def test_files_are_grouped_by_the_folder_that_is_listed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"1")
    grouped = by_folder(["/t/a/x", "/t/b/y", "/t/a/z", "s3://b/t/w"])
    assert grouped == {"/t/a": ["x", "z"], "/t/b": ["y"], "s3://b/t": ["w"]}
    assert names_in(str(tmp_path / "a"), {}) == {"x"}
    assert names_in(str(tmp_path / "gone"), {}) == names_in(str(tmp_path / "a" / "x"), {}) == set()
    assert read_bytes(str(tmp_path / "a" / "x"), {}) == b"1"
