"""Rules of places: what Spark writes, this process must be able to open without Spark."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from etl_pictures import write_image

from lakelens import ImageTable
from lakelens.errors import InvalidArgumentError, StoreError
from lakelens.etl.commit.transaction import is_same_place, require_reachable, require_writable
from lakelens.etl.spark.catalog import place_to_spark
from lakelens.table import Table


@pytest.mark.unit
@pytest.mark.parametrize("part", [*"[]^|?#\\\t", "%20"])
def test_a_folder_that_delta_rs_misreads_or_cannot_write_is_refused_with_what_is_in_the_way(part):
    for place in (f"/images/a{part}b", f"/images/a{part}b/further/t", f"s3://images/a{part}b/t"):
        with pytest.raises(InvalidArgumentError, match=r"in a folder with|would be read as something else"):
            require_writable(Table(place))
    with pytest.raises(InvalidArgumentError, match="unsupported scheme 'hdfs'"):
        require_writable(Table("hdfs://images/t"))
    for place in ("/images/50% of é, {1}*~&'\"`<>", "s3://images/50% of é", "dbfs:/Volumes/a/b/c"):
        require_writable(Table(place))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("seen", "is_same"),
    [
        ("file:/Volumes/a/b/c/t", True),
        ("dbfs:/Volumes/a/b/c/t", True),
        (None, True),
        ("dbfs:/other", False),
        ("hdfs://namenode/Volumes/a/b/c/t", False),
    ],
)
def test_a_path_is_the_same_place_for_spark_and_for_this_process_or_refused(seen, is_same):
    assert is_same_place("/Volumes/a/b/c/t", seen) == is_same


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_table_that_only_spark_can_reach_is_refused_before_anything_is_written(spark, tmp_path, monkeypatch):
    session = spark.newSession()
    assert place_to_spark(session, str(tmp_path / "with space é%")) == f"file:{tmp_path}/with space é%"
    session.conf.set("fs.defaultFS", "hdfs://nowhere:1/")
    with pytest.raises(InvalidArgumentError, match=r"Spark takes this path for hdfs://nowhere:1/"):
        require_reachable(session, Table.of(tmp_path / "t"), exists=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    away = {"aws_endpoint_url": "http://127.0.0.1:9", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    with pytest.raises(StoreError, match="only Spark reaches this place"):
        require_reachable(spark, Table.of("s3a://images/t", None, away), exists=False)
    write_image(tmp_path / "images" / "cat" / "1.jpg", seed=1)
    with pytest.raises(InvalidArgumentError, match=r"'\[' in its path"):
        ImageTable(spark, tmp_path / "a[1]" / "t").ingest(tmp_path / "images", size=16)
    name = f"managed_{uuid.uuid4().hex}"
    spark.sql(f"CREATE DATABASE {name} LOCATION 'file:{tmp_path}/b^2'")
    try:
        with pytest.raises(InvalidArgumentError, match=r"'\^' in its path"):
            ImageTable(spark, f"{name}.photos").ingest(tmp_path / "images", size=16)
        assert not spark.catalog.tableExists(f"{name}.photos")
    finally:
        spark.sql(f"DROP DATABASE {name} CASCADE")
    assert not list(Path(tmp_path).rglob("_delta_log"))
