"""Delta tables as other writers define them: the cases that Delta's implementations test themselves with, by Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

# Each makes its table at a location; one that moves it returns where it is read.
CASES: dict[str, Callable[[Any, str], Path | None]] = {}
# Versions that are compared beside the latest one.
EARLIER = {"overwritten_schema": (1,), "schema_that_grew": (0,), "shallow_clone": (0,)}


@dataclass
class ForeignTable:
    """A table, and the rows that Spark reads from it by version; None is the latest version."""

    location: Path
    rows: dict[int | None, list[dict[str, Any]]] = field(default_factory=dict)


def case(build: Callable[[Any, str], Path | None]) -> Callable[[Any, str], Path | None]:
    CASES[build.__name__] = build
    return build


def build_all(spark: Any, root: Path) -> dict[str, ForeignTable]:
    """Builds every table, a few at a time, and reads each with Spark."""
    session = spark.newSession()
    for setting in ("sql.shuffle.partitions", "databricks.delta.snapshotPartitions"):
        session.conf.set(f"spark.{setting}", "1")
    session.conf.set("spark.databricks.delta.writeChecksumFile.enabled", "false")
    session.conf.set("spark.sql.adaptive.enabled", "false")  # makes each stage a job of its own
    names = list(CASES)
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(names, pool.map(lambda name: _build(session, root, name), names), strict=True))


def _build(spark: Any, root: Path, name: str) -> ForeignTable:
    # Delta looks for the session of the thread when it reads a table with id mapping.
    spark.sparkContext._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    table = ForeignTable(root / name)
    moved_to = CASES[name](spark, str(table.location))
    for version in (None, *EARLIER.get(name, ())):
        table.rows[version] = rows_of(spark, str(table.location), version)
    table.location = moved_to or table.location
    return table


def rows_of(spark: Any, location: str, version: int | None = None) -> list[dict[str, Any]]:
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return [row.asDict(recursive=True) for row in reader.load(location).collect()]


def write(spark: Any, location: str, rows: str, **options: str) -> None:
    """Appends what a SELECT gives, as one file."""
    writer = spark.sql(rows).coalesce(1).write.format("delta").mode(options.pop("mode", "append"))
    for key, value in options.items():
        writer = writer.option(key.replace("__", "."), value)
    writer.save(location)


def numbers(first: int, last: int) -> str:
    source = f"range({first}, {last})"
    return f"SELECT id, CAST(id AS INT) AS label, CAST(id AS STRING) AS text FROM {source}"  # noqa: S608


def write_by_delta_rs(location: str, first: int, last: int, **options: Any) -> None:
    """Writes the rows that `numbers` gives, where it does not matter that Spark does."""
    ids = range(first, last)
    columns = {"id": pa.array(ids, pa.int64()), "label": pa.array(ids, pa.int32()), "text": pa.array(map(str, ids))}
    write_deltalake(location, pa.table(columns), **options)


@case
def overwritten_schema(spark, location):
    """Each version after the first has a checkpoint, with statistics as a struct alone."""
    options = {"delta__checkpoint__writeStatsAsStruct": "true", "delta__checkpoint__writeStatsAsJson": "false"}
    write(spark, location, numbers(0, 3), delta__checkpointInterval="1", **options)
    write(spark, location, numbers(3, 5))
    write(spark, location, "SELECT 1L AS other, 'a' AS name", mode="overwrite", overwriteSchema="true")


@case
def schema_that_grew(spark, location):
    """A wider type, a column more, and a field more in a struct and in an array of structs."""
    first = "SELECT 1L AS id, CAST(7 AS BYTE) AS label, named_struct('a', 1) AS s, array(named_struct('x', 1)) AS l"
    write(spark, location, first)
    nested = "named_struct('a', 2, 'b', 'b') AS s, array(named_struct('x', 2, 'y', 3)) AS l"
    write(spark, location, f"SELECT 2L AS id, 70000 AS label, {nested}, 1.5D AS score", mergeSchema="true")


@case
def partitions(spark, location):
    one, other = datetime(1970, 1, 1), datetime(2020, 1, 2, 8, 45, 1, 123456)
    rows = [
        ("a", date(1970, 1, 1), b"hello", True, one, Decimal("200.00"), 1.5, -3, 1),
        (None, None, None, None, None, None, None, None, 2),
        ("/%20%f", date(2020, 2, 29), "\U0001f608".encode(), False, other, Decimal("-12.50"), float("nan"), 127, 3),
        ("a b=c&d", date(1, 1, 1), b"50%", True, one, Decimal("0.01"), -0.5, 0, 4),
        ("", date(9999, 12, 31), b"x", False, other, Decimal("99999999.99"), 1e30, -128, 5),
    ]
    columns = {
        "letter": "string",
        "day": "date",
        "data": "binary",
        "flag": "boolean",
        "time": "timestamp",
        "amount": "decimal(10, 2)",
        "share": "double",
        "small": "tinyint",
    }
    declared = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    frame = spark.createDataFrame(rows, f"{declared}, id int").coalesce(1)
    frame.write.format("delta").partitionBy(*columns).save(location)


@case
def column_types(spark, location):
    """The simple types, the nested ones, and times near and far."""
    write(
        spark,
        location,
        "SELECT id, CAST(id AS STRING) AS text, CAST(id AS SHORT) AS short, CAST(id AS BYTE) AS byte, "
        "CAST(id / 3 AS FLOAT) AS single, id / 3 AS double, id % 2 = 0 AS flag, CAST(CAST(id AS STRING) AS BINARY) AS "
        "bytes, CAST(id AS DECIMAL(5, 3)) AS small, CAST(id AS DECIMAL(38, 10)) AS large, date_add(DATE'1970-01-01', "
        "CAST(id AS INT)) AS day, named_struct('x', id / 2, 'y', id % 2 = 0) AS s, sequence(0, id) AS l, "
        "map('k', id) AS m, zoned, plain FROM VALUES "
        "(0L, TIMESTAMP'2020-01-02 03:04:05.678901', TIMESTAMP_NTZ'2020-01-02 03:04:05.678901'), "
        "(1L, TIMESTAMP'9999-12-31 23:59:59', TIMESTAMP_NTZ'9999-12-31 23:59:59'), "
        "(2L, TIMESTAMP'1901-01-01 00:00:00', TIMESTAMP_NTZ'1901-01-01 00:00:00'), "
        "(3L, TIMESTAMP'1970-01-01 00:00:00', TIMESTAMP_NTZ'1970-01-01 00:00:00') AS t(id, zoned, plain)",
    )


@case
def v2_checkpoint(spark, location):
    write(spark, location, numbers(0, 3), delta__checkpointPolicy="v2", delta__checkpointInterval="2")
    for first in (10, 20, 30):
        write(spark, location, numbers(first, first + 2))
    for version in (0, 1):
        (Path(location) / "_delta_log" / f"{version:020d}.json").unlink()


@case
def column_mapping_by_id(spark, location):
    write(spark, location, numbers(0, 3), delta__columnMapping__mode="id")


@case
def deletion_vectors_and_mapping(spark, location):
    """Files that lost rows twice, in partitions, with mapped names at every depth and nulls in nested columns."""
    columns = "id BIGINT, label INT, s STRUCT<a: INT, b: STRING>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, INT>"
    properties = "'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name'"
    table = f"delta.`{location}`"
    spark.sql(
        f"CREATE TABLE {table} ({columns}, part STRING) USING delta PARTITIONED BY (part) TBLPROPERTIES ({properties})"
    )
    rows = (
        "SELECT id, CAST(id AS INT), IF(id = 3, NULL, named_struct('a', CAST(id AS INT), 'b', CAST(id AS STRING))), "
        "IF(id = 8, NULL, array(named_struct('x', CAST(id AS INT)))), IF(id = 9, NULL, map('k', CAST(id AS INT))), "
        "IF(id % 2 = 0, 'a b=%20', 'c') FROM range(0, 40)"
    )
    spark.sql(f"INSERT INTO {table} {rows}")
    spark.sql(f"DELETE FROM {table} WHERE id % 5 = 0")  # noqa: S608
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN part TO half")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN s.a TO first")
    spark.sql(f"DELETE FROM {table} WHERE id = 7")  # noqa: S608


@case
def writer_features(spark, location):
    """Clustering, change data feed, row tracking, in-commit timestamps and a constraint: readers need not know them."""
    features = ("enableChangeDataFeed", "enableRowTracking", "enableInCommitTimestamps")
    properties = ", ".join([f"'delta.{feature}' = 'true'" for feature in features])
    properties += ", 'delta.constraints.positive' = 'id >= 0'"
    table = f"delta.`{location}` USING delta CLUSTER BY (id) TBLPROPERTIES ({properties})"
    spark.sql(f"CREATE TABLE {table} AS {numbers(0, 4)}")
    spark.sql(f"UPDATE delta.`{location}` SET label = 100 WHERE id = 1")  # noqa: S608


@case
def shallow_clone(spark, location):
    source = f"{location} of 100%"
    write_by_delta_rs(source, 0, 3)
    spark.sql(f"CREATE TABLE delta.`{location}` SHALLOW CLONE delta.`{source}`")
    write(spark, location, numbers(3, 5))


@case
def widened_types(spark, location):
    """Files from before and after their columns were widened."""
    columns = "id INT, small BYTE, single FLOAT, amount DECIMAL(4, 2), part SHORT"
    columns += ", s STRUCT<x: INT>, many ARRAY<INT>, by MAP<STRING, STRUCT<y: SHORT, many: ARRAY<FLOAT>>>"
    table = f"delta.`{location}`"
    properties = "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    spark.sql(f"CREATE TABLE {table} ({columns}) USING delta PARTITIONED BY (part) {properties}")
    nested = "named_struct('x', 1), array(1, NULL), map('k', named_struct('y', 2, 'many', array(0.5)), 'n', NULL)"
    spark.sql(f"INSERT INTO {table} VALUES (1, 2, 0.5, 1.25, 3, {nested}), (2, 3, 1.5, 1, 3, NULL, NULL, NULL)")  # noqa: S608
    wider = {"id": "BIGINT", "small": "DOUBLE", "single": "DOUBLE", "amount": "DECIMAL(10, 4)", "part": "INT"}
    fields = {"s.x": "BIGINT", "many.element": "BIGINT", "by.value.y": "INT", "by.value.many.element": "DOUBLE"}
    for name, kind in {**wider, **fields}.items():
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {kind}")
    wide = "5000000000, 2.5, 0.1D, 1.2345, 70000, named_struct('x', 5000000000), array(5000000000)"
    wide += ", map('k', named_struct('y', 70000, 'many', array(0.1D)))"
    spark.sql(f"INSERT INTO {table} VALUES ({wide})")  # noqa: S608


@case
def columns_in_another_case(spark, location):
    """Files that spell columns, and fields of nested ones, in other cases; some of their rows are deleted."""
    root = Path(location)
    for number, names in enumerate((("Label", "Größe", "Point", "X"), ("LABEL", "GRÖßE", "POINT", "x"))):
        label, size, point, field = names
        ids = range(4 * number, 4 * number + 4)
        nested = pa.array([[("k", {field: i})] for i in ids], pa.map_(pa.string(), pa.struct([(field, pa.int64())])))
        columns = {label: pa.array(ids, pa.int32()), size: [i / 2 for i in ids], point: nested}
        (root / f"Part={number}").mkdir(parents=True)
        pq.write_table(pa.table(columns), root / f"Part={number}" / "rows.parquet", row_group_size=2)
    spark.sql(f"CONVERT TO DELTA parquet.`{location}` PARTITIONED BY (part INT)")
    spark.sql(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{location}` WHERE label IN (1, 6)")  # noqa: S608


@case
def moved_without_statistics(spark, location):
    """A table that was copied to a folder with a percent sign; its log holds relative paths, and no statistics."""
    write_by_delta_rs(location, 0, 3, partition_by=["text"])
    place = Path(f"{location} 100% é")
    shutil.copytree(location, place)
    commit = place / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    commit.write_text("\n".join(map(json.dumps, actions)) + "\n")
    for checksum in list(commit.parent.glob("*.crc")):
        checksum.unlink()
    return place
