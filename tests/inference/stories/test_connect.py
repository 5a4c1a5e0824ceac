"""One story on a Spark Connect session: what its client does by other means than a session with a driver of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from colours import NAMES, SIDE, image_of, read, row, write_colour, write_table
from delta_rows import delta_rows
from deltalake import DeltaTable, Field
from mounted_folders import account, mount
from pyspark.errors import PythonException
from pyspark.sql import functions

from lakelens import ImageTable, predict_udf
from lakelens.errors import (
    AnnotationFileError,
    ConstraintError,
    InvalidArgumentError,
    NotADeltaTableError,
    ScoringPaused,
    SessionError,
    SourceNotFoundError,
    TableConflictError,
    VersionFilesMissingError,
)
from lakelens.etl.commit.transaction import Batch, Transaction
from lakelens.etl.spark.writing_session import SET_FOR_WRITING
from lakelens.inference.evaluation.evaluate import evaluate
from lakelens.inference.scoring.score import score
from lakelens.spark.port import option_of
from lakelens.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.sessions("connect")]

FILES = [f"{name}/a b{number}%.jpg" for name in NAMES for number in range(2)]
OF_BOX = {"label": "red", "xmin": 0.0, "ymin": 0.0, "xmax": 8.0, "ymax": 16.0}


def write_folders(root: Path) -> Path:
    """Two files of each colour, in class folders."""
    for number, file in enumerate(FILES):
        write_colour(root / file, file.partition("/")[0], number)
    return root


def write_text(file: Path, content: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each layout around the same files."""
    root = tmp_path_factory.mktemp("images")
    write_folders(root / "classes")
    write_colour(root / "voc" / "JPEGImages" / "1.jpg", "red")
    corners = "".join(f"<{side}>{1 if side.endswith('min') else 8}</{side}>" for side in list(OF_BOX)[1:])
    objects = f"<object><name>red</name><bndbox>{corners}</bndbox></object>"
    write_text(root / "voc" / "Annotations" / "1.xml", f"<annotation>{objects}</annotation>")
    write_text(root / "voc" / "ImageSets" / "Main" / "val.txt", "1\n")
    write_colour(root / "coco" / "train" / "1.jpg", "red")
    coco = {
        "images": [{"id": 1, "file_name": "1.jpg"}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 8, 16]}],
        "categories": [{"id": 1, "name": "red"}],
    }
    write_text(root / "coco" / "annotations" / "instances_train.json", json.dumps(coco))
    rows = [{"path": f"classes/{file}", "label": "x", "boxes": [OF_BOX]} for file in FILES]
    pq.write_table(pa.Table.from_pylist(rows), root / "rows.parquet")
    return root


@pytest.fixture(scope="module")
def mounted(spark: Any, images: Path) -> Iterator[str]:
    """The URI of the folder in a file system that only Spark can open."""
    with mount(spark, "abfs", f"images@{account()}.dfs.core.windows.net", images) as uri:
        yield uri


@pytest.mark.parametrize(
    ("place", "source", "layout", "stored", "boxes"),
    [("disk", "voc", "voc", 1, 1), ("store", "coco", "coco", 1, 1), ("store", "rows.parquet", "manifest", 6, 6)],
)
def test_each_layout_is_ingested_from_a_disk_or_a_file_system_that_only_spark_opens(
    spark, images, mounted, tmp_path, place, source, layout, stored, boxes
):
    table, root = ImageTable(spark, tmp_path / "t"), str(images) if place == "disk" else mounted
    result = table.ingest(f"{root}/{source}", layout, size=SIDE)
    assert (result.stored, result.quarantined) == (stored, 0)
    rows = delta_rows(table.location)
    assert sum(len(row["annotations"] or ()) for row in rows) == boxes
    assert {row["path"].partition(":")[0] for row in rows} == {"file" if place == "disk" else "abfs"}


def test_files_that_only_spark_opens_are_ingested_once(spark, mounted, tmp_path):
    table = ImageTable(spark, tmp_path / "t")
    assert table.ingest(f"{mounted}/classes", size=SIDE).stored == len(FILES)
    assert table.class_counts() == dict.fromkeys(NAMES, 2)
    assert table.ingest(f"{mounted}/classes").committed is False


def test_rows_of_a_dataframe_are_ingested(spark, images, tmp_path):
    contents = [(file, (images / "classes" / file).read_bytes(), "x") for file in FILES]
    frame = spark.createDataFrame(contents, "path STRING, content BINARY, label STRING")
    table = ImageTable(spark, tmp_path / "t")
    assert table.ingest(frame, size=SIDE).stored == len(FILES)
    assert table.class_counts() == {"x": len(FILES)}


@pytest.fixture(scope="module")
def story(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A table through ingests, a landing folder, and edits, told step by step."""
    root = tmp_path_factory.mktemp("story")
    source, landing = write_folders(root / "source"), root / "landing"
    write_text(source / "red" / "bad.jpg", "no image")
    table = ImageTable(spark, root / "table")
    before = {name: option_of(spark, name) for name in SET_FOR_WRITING}
    first = table.ingest(source, size=SIDE, classes=NAMES, near_duplicates=True)
    write_colour(source / FILES[0], "red", 21)
    os.utime(source / FILES[0], (1_600_000_000, 1_600_000_000))
    (source / FILES[-1]).unlink()
    preview = table.preview(source, delete_missing=True)
    changed = table.ingest(source, delete_missing=True, verify="content")
    write_colour(landing / "red" / "1.jpg", "red", 40)
    landed = table.ingest_stream(landing)
    deleted = table.delete("path LIKE '%/landing/%'")
    renamed = table.rename_class("red", "crimson")
    compacted = table.optimize()
    restored = table.restore(first.version)
    profiled = table.profile(out=root / "profile", near_duplicates=False).profile
    after = {name: option_of(spark, name) for name in SET_FOR_WRITING}
    return {**locals()}


def test_a_table_is_ingested_edited_and_restored(story):
    table, first = story["table"], story["first"]
    assert (first.version, first.stored, first.reasons) == (0, 6, {"not_an_image": 1})
    assert (story["preview"].changed, story["preview"].gone) == (1, 1)
    assert (story["changed"].changed, story["changed"].gone, story["changed"].removed) == (1, 1, 1)
    assert [batch.stored for batch in story["landed"].batches] == [1]
    assert story["deleted"].deleted == {"red": 1}
    assert (story["renamed"].rows, story["compacted"].committed) == (2, True)
    assert (story["restored"].version, table.labels()) == (table.version, dict(zip(NAMES, range(3), strict=True)))
    assert table.read(0).count() == table.read().count() == 6
    assert dict(story["profiled"].reasons) == table.quarantine().reasons == {"deleted": 1, "not_an_image": 1}
    assert story["after"] == story["before"]


def test_a_version_is_scored_evaluated_and_predicted_by_path_and_by_name(spark, story, checkpoint, tmp_path):
    spark.sql("CREATE DATABASE connected")
    try:
        spark.sql(f"CREATE TABLE connected.photos USING delta LOCATION '{story['table'].location}'")
        scored = score(spark, checkpoint.path, "connected.photos", tmp_path / "predictions", rows_per_commit=3)
        again = score(spark, checkpoint.path, story["table"].location, tmp_path / "predictions")
    finally:
        spark.sql("DROP DATABASE connected CASCADE")
    assert (scored.scored, scored.errors, again.scored, again.skipped) == (6, 0, 0, 6)
    assert [one["predicted_name"] for one in read(tmp_path / "predictions")] == sorted(2 * NAMES)
    found = evaluate(spark, checkpoint.path, story["table"].location, out=tmp_path / "page", split=None)
    assert (found.evaluation.rows, found.evaluation.accuracy) == (6, 1.0)
    rows = [(bytearray(image_of("red")),), (bytearray(b"no image"),)]
    udf = predict_udf(spark, checkpoint.path)
    given = spark.createDataFrame(rows, "image BINARY").coalesce(1).select(udf("image").alias("given")).collect()
    assert (given[0].given.predicted_name, given[1].given.error.partition(":")[0]) == ("red", "not_an_image")
    # On a cluster each of four tries would start a worker that imports TensorFlow.
    pixels = [(bytearray(image_of(name, form="raw_rgb")),) for name in NAMES]
    raw = spark.createDataFrame(pixels, "image BINARY").coalesce(1).select(udf("image"))
    with pytest.raises(PythonException, match=r"none of the \d images .* udf\('image', 'format', 'height', 'width'\)"):
        raw.collect()


def test_a_table_is_watched(spark, checkpoint, tmp_path):
    table, predictions = tmp_path / "images", tmp_path / "predictions"
    write_table(table, [row(0), row(1)])
    results = []

    def next_step(result):
        results.append(result)
        if len(results) == 1:
            write_table(table, [row(2)])
            DeltaTable(table).alter.add_columns(Field("camera", "string"))
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(ScoringPaused) as ended:
        score(spark, checkpoint.path, table, predictions, watch_s=0.05, on_pass=next_step)
    assert ended.value.signal_number == signal.SIGTERM
    assert [(result.scored, result.carried) for result in results] == [(2, 0), (1, 2)]
    last = [one["path"] for one in read(predictions) if one["version"] == results[-1].table_version]
    assert last == [row(number)[0] for number in range(3)]


def test_of_two_that_planned_the_same_commit_one_is_refused(spark, story, tmp_path):
    table = Table(shutil.copytree(story["table"].location, str(tmp_path / "t")))
    rows = spark.sql("SELECT 'file:///late' AS path, 'train' AS split")
    planned = [Transaction(spark, table) for _ in range(2)]
    planned[1]._require_latest = lambda: None  # as when both look before either writes
    latest = planned[0].commit(Batch(rows, "first"))
    with pytest.raises(TableConflictError):
        planned[1].commit(Batch(rows.withColumn("split", functions.lit("test")), "second"))
    assert DeltaTable(table.location).version() == latest


def test_a_server_says_in_its_own_words_what_is_refused_in_ours(spark, story, images, mounted, tmp_path):
    azure = "abfss://c@lake.dfs.core.windows.net/t"
    table = ImageTable(spark, shutil.copytree(story["table"].location, str(tmp_path / "t")))
    DeltaTable(table.location).alter.add_constraint({"no_pink": "label_name <> 'pink'"})
    write_colour(tmp_path / "more" / "pink" / "1.jpg", "red")
    write_text(tmp_path / "m.csv", "file,label\n")
    for call, error, words in (
        (lambda: table.ingest(tmp_path / "more"), ConstraintError, r"CHECK constraint no_pink .*pink.*DROP CONSTRAINT"),
        (lambda: table.delete("colour = 'red'"), InvalidArgumentError, "colour"),
        (lambda: table.delete("path = ("), InvalidArgumentError, "is not a condition"),
        (lambda: table.ingest(tmp_path / "m.csv", "manifest"), AnnotationFileError, r"m\.csv has no column 'path'"),
        (lambda: table.ingest(f"{mounted}/none", "class_folders"), SourceNotFoundError, "cannot be listed"),
        (lambda: table.ingest(f"{mounted}/none.csv", "manifest"), SourceNotFoundError, "cannot be read"),
        (lambda: table.ingest(azure), SessionError, "Spark has no file system for abfss"),
        (lambda: table.ingest(f"{azure}.csv", "manifest"), SessionError, "Spark has no file system for abfss"),
        (lambda: ImageTable(spark, azure).read(0), SessionError, "Spark has no file system for abfss"),
        (lambda: ImageTable(spark, "no_such.t").ingest(images), NotADeltaTableError, "the catalog has no schema"),
        (lambda: ImageTable(spark, f"{table.location}-2").delete("true"), NotADeltaTableError, "holds no Delta table"),
    ):
        with pytest.raises(error, match=words):
            call()
    for file in Path(table.location).glob("split=*/*.parquet"):
        file.unlink()
    with pytest.raises(VersionFilesMissingError):
        table.delete("height > 0")
