"""One place has one spelling."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakelens.errors import InvalidArgumentError
from lakelens.locations import (
    absolute,
    absolute_path,
    folder_of,
    is_table_name,
    name_parts,
    table_and_version,
    unquoted,
    with_suffix,
    without_password,
)
from lakelens.table import Table

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("location", "named"),
    [
        ("images", False),  # one word is a folder, as in every shell
        ("schema.table", True),
        ("catalog.schema.table", True),
        ("./schema.table", False),
        ("/data/schema.table", False),
        ("a.b.c.d", False),
        ("s3a://bucket/x.y", False),
        ("`my-catalog`.`2024`.table", True),
        ("db.`a ``b`` c`", True),
        ("`one.part`", False),
        ("my-catalog.db.t", False),
        ("db.`a/b`", False),
        ("db.table\n", False),
    ],
)
def test_a_table_name_has_two_or_three_parts_and_no_slash(location, named):
    assert is_table_name(location) is named


def test_a_name_has_backticks_where_it_needs_them_alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert absolute("`main`.`my-db`.`photos`") == "main.`my-db`.photos"
    assert name_parts("a.`b.c`.`d``e`") == ["a", "`b.c`", "`d``e`"]
    assert [unquoted(part) for part in name_parts("a.`b.c`.`d``e`")] == ["a", "b.c", "d`e"]
    assert with_suffix("a.`1b`", "_x") == "a.`1b_x`"
    assert (with_suffix("a.b", "_x"), with_suffix("/data/a/", "_x")) == ("a.b_x", "/data/a_x")
    assert table_and_version("db.`a@1`@pin") == ("db.`a@1`", "pin")
    assert table_and_version("db.`a@1`") == ("db.`a@1`", None)
    assert absolute("delta.`/data/a b`") == "/data/a b"


@pytest.mark.parametrize(
    ("text", "name"),
    [("my-catalog.db.t", "`my-catalog`.db.t"), ("db.2024", "db.`2024`"), ("photos-2.1", "`photos-2`.`1`")],
)
def test_what_may_be_a_path_or_a_name_without_backticks_is_refused_with_both(text, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=re.escape(f"write ./{text} for the path, and {name} for the name")):
        Table.of(text)
    assert Table.of(f"./{text}").location == str(tmp_path / text)
    (tmp_path / text).mkdir()
    assert Table.of(text).location == str(tmp_path / text)
    assert Table.of(name).is_name


def test_what_exists_is_a_path_not_a_table_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert absolute("photos.v1") == "photos.v1"
    (tmp_path / "photos.v1").mkdir()
    assert absolute("photos.v1") == str(tmp_path / "photos.v1")
    assert absolute(Path("other.v1")) == absolute_path("other.v1") == str(tmp_path / "other.v1")


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///data/a#1", "/data/a#1"),
        ("file:/data/a?b=1/c", "/data/a?b=1/c"),
        ("FILE:/data/a", "/data/a"),
        ("file://localhost/data/a", "/data/a"),
        ("file:///data/a/", "/data/a"),
        ("file:tables/a", "{here}/tables/a"),
        ("file:///with%20space/100%25%20%C3%BC", "/with space/100% ü"),
        ("/with space/100% ü", "/with space/100% ü"),
        ("tables/a", "{here}/tables/a"),
        *[(uri, uri) for uri in ("s3a://bucket/key", "abfss://c@a.dfs.core.windows.net/x", "dbfs:/x", "gs://b/k")],
    ],
)
def test_a_path_and_its_uri_are_one_location_and_an_object_stores_is_left_as_it_is(uri, path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert absolute(uri) == path.format(here=tmp_path)


@pytest.mark.parametrize(
    ("location", "words"),
    [("file://data/photos", r"names the machine 'data'.*write file:/data/photos"), ("  ", "location is empty")],
)
def test_a_file_uri_of_another_machine_and_an_empty_location_are_refused(location, words):
    with pytest.raises(InvalidArgumentError, match=words):
        absolute(location)


def test_a_place_has_one_spelling_whatever_links_and_dots_lead_to_it(monkeypatch, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "link").symlink_to("photos", target_is_directory=True)
    monkeypatch.chdir(tmp_path / "project")
    for spelling in ("../photos", "../link", Path("../link/../photos"), f"file:{tmp_path}/project/../link"):
        assert absolute(spelling) == absolute_path(spelling) == str(tmp_path / "photos")


def test_files_lie_next_to_the_name_under_which_a_manifest_was_given(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to("photos", target_is_directory=True)
    (tmp_path / "photos" / "labels.csv").symlink_to(tmp_path / "labels-2.csv")
    for spelling in ("link/labels.csv", "link/../photos/labels.csv"):
        assert folder_of(tmp_path / spelling) == folder_of(f"file:{tmp_path}/{spelling}") == str(tmp_path / "photos")
    assert folder_of("s3a://bucket/a/labels.csv") == "s3a://bucket/a"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://me:se:cr@et@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("http://me@host:5000/x:y@z", "http://me@host:5000/x:y@z"),
        ("sqlite:////data/a:b@c.db", "sqlite:////data/a:b@c.db"),
        ("databricks", "databricks"),
        ("GET http://me:secret@host/x: refused by a@b", "GET http://me:***@host/x: refused by a@b"),
    ],
)
def test_a_password_is_not_shown(uri, shown):
    assert without_password(uri) == shown
