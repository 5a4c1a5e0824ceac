"""Rules of DataFrames and of rows without a path as sources."""

from __future__ import annotations

import hashlib
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from etl_pictures import write_image
from problems import reasons
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from stored_rows import stored_paths

from lakelens import ImageTable
from lakelens.etl.annotations.record import CONTENT_CONFLICT, IMAGE_MISSING, PATH_UNUSABLE
from lakelens.etl.files import local_uri
from lakelens.etl.sources.image_rows import list_frame, list_manifest
from lakelens.etl.sources.source import Source, failure_of_source
from lakelens.spark.port import settings_of

pytestmark = pytest.mark.spark

BOXES_DDL = (
    "path STRING, content BINARY, label STRING, xmin DOUBLE, ymin DOUBLE, xmax DOUBLE, ymax DOUBLE, "
    "modificationTime STRING"
)


def test_a_path_of_several_rows_is_listed_and_read_once_in_any_order_and_each_row_without_one_is_listed(spark):
    names = ("cat", "dog", "ape")
    rows = [
        ("twice", b"one", "cat", 0.0, 0.0, 1.0, 1.0, "yesterday"),
        ("twice", b"one", "dog", 1.0, 1.0, 2.0, 2.0, "yesterday"),
        ("alone", b"other", "dog", 1.0, 1.0, 2.0, 2.0, "2024-05-01 10:00:00"),
        ("torn", b"one", "dog", 1.0, 1.0, 2.0, 2.0, None),
        ("torn", b"other", "cat", 0.0, 0.0, 1.0, 1.0, None),
        *[("forth", b"one", name, 0.0, 0.0, 1.0, 1.0, None) for name in names],
        *[("back", b"one", name, 0.0, 0.0, 1.0, 1.0, None) for name in reversed(names)],
        *[(path, b"third", "cat", 0.0, 0.0, 1.0, 1.0, None) for path in (None, None, "")],
    ]
    listing = list_frame(spark, Source(spark.createDataFrame(rows, BOXES_DDL))).described({})
    files = listing.files.persist()
    try:
        listed = {row.path: row for row in files.collect()}
        read = {row.path: row.content for row in listing.read_contents(files, 10).collect()}
    finally:
        files.unpersist()
    assert len(listed) == len(read) == 8
    unnamed = {path: row for path, row in listed.items() if reasons(row) == [PATH_UNUSABLE]}
    assert [row.source_length for row in unnamed.values()] == [-1, -1, -1]
    assert {read[path] for path in unnamed} == {None}
    found = {path: (len(row.boxes), reasons(row)) for path, row in listed.items() if path not in unnamed}
    assert found == {
        "alone": (1, []),
        "torn": (2, [CONTENT_CONFLICT]),
        "twice": (2, []),
        "forth": (3, []),
        "back": (3, []),
    }
    assert {path: bytes(read[path]) for path in found} == {
        **dict.fromkeys(("twice", "forth", "back"), b"one"),
        **dict.fromkeys(("alone", "torn"), b"other"),
    }
    twice, alone, forth, back = (listed[path] for path in ("twice", "alone", "forth", "back"))
    assert (twice.content_hash, twice.source_length) == (hashlib.sha256(b"one").hexdigest(), 3)
    assert (twice.source_modified.year, alone.source_modified.year) == (1970, 2024)  # "yesterday" is no time
    assert forth.annotation_hash == back.annotation_hash != twice.annotation_hash


def test_rows_without_a_path_are_of_no_file_system(spark, tmp_path):
    (tmp_path / "1.jpg").write_bytes(b"bytes")
    (tmp_path / "m.csv").write_text("path,label\n1.jpg,cat\n,cat\n,cat\n2.jpg,cat\n")
    found = list_manifest(spark, Source(tmp_path / "m.csv", "manifest")).files.collect()
    local = [([], 5), ([IMAGE_MISSING], -1), ([PATH_UNUSABLE], -1), ([PATH_UNUSABLE], -1)]
    assert sorted((reasons(row), row.source_length) for row in found) == local

    host = f"lake{uuid.uuid4().hex}"
    with settings_of(spark, {f"fs.viewfs.mounttable.{host}.link./mount": f"file://{tmp_path}"}):
        place = f"viewfs://{host}/mount"
        found = list_manifest(spark, Source(tmp_path / "m.csv", "manifest", images=place)).files.collect()
    assert sorted((reasons(row), row.source_length) for row in found) == local


def test_one_file_is_one_row_whoever_wrote_its_path(spark, tmp_path):
    source, place = tmp_path / "source", tmp_path / "table"
    for seed, name in enumerate(("a b.jpg", "100%.jpg", "plain.jpg")):
        write_image(source / "cat" / name, seed=seed)
    table = ImageTable(spark, place)
    label = F.lit("cat").alias("label")
    binary = spark.read.format("binaryFile").load(str(source / "cat")).select("*", label)
    bare = F.regexp_replace("path", "^file:", "")
    frames = {
        "binary": binary,
        "paths": binary.select(bare.alias("path"), "label"),
        "image": spark.read.format("image").load(str(source / "cat")).select("image", label),
    }
    assert table.ingest(frames["binary"], size=16).stored == 3
    for name, frame in frames.items():
        assert sorted(row.path for row in list_frame(spark, Source(frame)).files.collect()) == stored_paths(place), name
    for file in place.glob("split=*/*.parquet"):  # by the settings of an ingest, not by those of the frame's session
        columns = pq.ParquetFile(file).metadata.row_group(0)
        kinds = {columns.column(at).compression for at in range(columns.num_columns)}
        assert kinds == {"UNCOMPRESSED"}
    # As rows were stored before paths had one form.
    old = "replace(replace(replace(path, '%20', ' '), '%25', '%'), 'file://', 'file:')"
    DeltaTable(place).update({"path": old}, predicate="path NOT LIKE '%plain%'")
    (source / "cat" / "plain.jpg").write_text("no image")
    write_image(source / "cat" / "a b.jpg", seed=77)
    by_folder = table.ingest(source)  # which says other things of its images
    assert (by_folder.stored, by_folder.quarantined) == (2, 1)
    assert stored_paths(place) == sorted(local_uri(bytes(source / "cat" / name)) for name in ("a b.jpg", "100%.jpg"))


@pytest.fixture(scope="module")
def contents(spark, tmp_path_factory):
    """A Parquet file of 60 rows whose content names their class."""
    place = str(tmp_path_factory.mktemp("frames") / "rows")
    spark.range(60).selectExpr(
        "id", "cast(cast(id % 6 as string) as binary) AS content", "cast(id % 6 as string) AS label"
    ).repartition(4).write.parquet(place)
    return spark.read.parquet(place)


@pytest.mark.parametrize(
    "query",
    [
        lambda rows: rows.repartition(3).withColumn("path", F.concat(F.lit("img/"), F.monotonically_increasing_id())),
        lambda rows: rows.where(F.rand() < 0.5).withColumn("path", F.expr("uuid()")).limit(20),
    ],
    ids=["numbered", "drawn"],
)
def test_rows_of_content_keep_their_own_labels_whatever_query_gives_them(contents, query):
    frame = query(contents)
    listing = list_frame(frame.sparkSession, Source(frame))
    try:
        labels = {row.path: row.label_name for row in listing.files.collect()}
        read = {row.path: bytes(row.content).decode() for row in listing.read_contents(listing.files, 10).collect()}
    finally:
        listing.release()
    assert labels == read
    assert labels


def test_label_and_digest_of_a_row_come_from_one_evaluation(spark):
    """An executor that dies takes its kept rows with it; other rows are computed then."""

    def drawn(batches):
        for batch in batches:
            names = [uuid.uuid4().hex for _ in range(batch.num_rows)]
            columns = [batch.column(0), pa.array([name.encode() for name in names]), pa.array(names)]
            yield pa.RecordBatch.from_arrays(columns, batch.schema.names)

    rows = spark.range(20).selectExpr("'img/' || id AS path", "cast('' AS binary) AS content", "'' AS label")
    listing = list_frame(spark, Source(rows.mapInArrow(drawn, rows.schema)))
    try:
        listing.cached[0].unpersist(blocking=True)
        found = listing.files.collect()
    finally:
        listing.release()
    digests = {row.path: hashlib.sha256(row.label_name.encode()).hexdigest() for row in found}
    assert {row.path: row.content_hash for row in found} == digests
    assert len(digests) == 20


def test_a_frame_that_cannot_be_read_once_is_refused(spark):
    """Spark computes rows again that it has lost, here at our request, and these have other bytes then."""

    def other_bytes(batches):
        for batch in batches:
            contents = pa.array([uuid.uuid4().bytes for _ in range(batch.num_rows)])
            yield pa.RecordBatch.from_arrays([batch.column(0), contents, batch.column(2)], batch.schema.names)

    rows = spark.createDataFrame([("a", b"", "cat"), ("b", b"", "dog")], "path STRING, content BINARY, label STRING")
    frame = rows.mapInArrow(other_bytes, rows.schema)
    listing = list_frame(spark, Source(frame))
    files = listing.files.persist()
    try:
        files.count()
        listing.cached[0].unpersist()
        with pytest.raises((PySparkException, Py4JJavaError)) as caught:
            listing.read_contents(files, 10).collect()
    finally:
        files.unpersist()
        listing.release()
    assert "write it to a table first" in str(failure_of_source(caught.value, "table"))


def test_the_query_behind_a_frame_of_paths_runs_once(spark, tmp_path):
    names = ("1.jpg", "2.jpg", "gone.jpg")
    for name in names[:2]:
        (tmp_path / name).write_bytes(b"bytes")
    read = tmp_path / "read"

    def counted(batches):
        for batch in batches:
            with read.open("a") as file:
                file.write("row\n" * batch.num_rows)
            yield batch

    frame = spark.createDataFrame([(str(tmp_path / name),) for name in names], "path STRING")
    listing = list_frame(spark, Source(frame.mapInArrow(counted, frame.schema)))
    try:
        listed = listing.files.collect()
    finally:
        listing.release()
    assert sorted(reasons(row) for row in listed) == [[], [], [IMAGE_MISSING]]
    assert len(read.read_text().splitlines()) == len(names)
