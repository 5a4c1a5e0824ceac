"""A table and its predictions on a Spark Connect session, whose driver is another process."""

from __future__ import annotations

import os

import pytest
from colours import COLOURS, NAMES
from connect_server import connect_session
from PIL import Image
from serverless import refusing_as_serverless

from lakelens import ImageTable
from lakelens.errors import SessionError
from lakelens.inference.evaluation.evaluate import evaluate
from lakelens.inference.scoring.score import score
from lakelens.inference.scoring.stream import score_stream
from lakelens.inference.udf import predict_udf

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1500)]

SIDE = 16
WATCHED = ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions", "spark.sql.session.timeZone")


def write_colour(path, name, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (SIDE, SIDE), tuple(value + shade for value in COLOURS[name])).save(path, quality=95)


@pytest.fixture(scope="module")
def story(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("connect")
    source = folder / "source"
    for name in NAMES:
        for shade in range(8):
            write_colour(source / name / f"{shade}.jpg", name, shade)
    (source / "red" / "bad.jpg").write_text("no image")
    told = {"folder": folder, "source": source}
    with connect_session(folder) as spark:
        told["before"] = [spark.conf.get(name, None) for name in WATCHED]
        table = ImageTable(spark, folder / "table")
        told["preview"] = table.preview(source, size=SIDE)
        told["first"] = table.ingest(source, size=SIDE, classes=NAMES)  # numbered in the order of the model
        told["again"] = table.ingest(source)
        write_colour(source / "red" / "0.jpg", "red", 20)
        os.utime(source / "red" / "0.jpg", (1_600_000_000, 1_600_000_000))
        (source / "blue" / "7.jpg").unlink()
        told["changed"] = table.ingest(source, delete_missing=True)
        write_colour(source / "green" / "new.jpg", "green", 9)
        told["stream"] = table.ingest_stream(source, max_files=10)
        told["deleted"] = table.delete("label_name = 'green' AND path LIKE '%/3.jpg'")
        told["renamed"] = table.rename_class("green", "leaf")
        told["optimized"] = table.optimize()
        told["restored"] = table.restore(told["first"].version)
        told["frame"] = ImageTable(spark, folder / "framed").ingest(
            spark.read.format("binaryFile").load(f"{source}/blue/*.jpg"), size=SIDE
        )
        told["after"] = [spark.conf.get(name, None) for name in WATCHED]
        told["rows"] = table.read().count()
        told["quarantined"] = [row["reason"] for row in table.read_quarantine().collect()]
        images = table.read().select("path", "label_name", predict_udf(spark, checkpoint.path)("image").alias("found"))
        told["predicted"] = images.select("label_name", "found.predicted_name").collect()
        told["scored"] = score(spark, checkpoint.path, folder / "table", folder / "predictions")
        told["rescored"] = score(spark, checkpoint.path, folder / "table", folder / "predictions")
        told["evaluated"] = evaluate(spark, checkpoint.path, folder / "table", out=folder / "page")
        with pytest.raises(SessionError) as refused:
            score_stream(spark, checkpoint.path, folder / "table", folder / "streamed", checkpoint=folder / "stream")
        told["stream refused"] = str(refused.value)
        with refusing_as_serverless() as told["refusals"]:
            told["serverless"] = on_serverless(spark, source, folder, checkpoint.path)
    return told


def on_serverless(spark, source, folder, model):
    table = ImageTable(spark, folder / "serverless")
    first = table.ingest(source, size=SIDE, classes=NAMES)
    write_colour(source / "red" / "1.jpg", "red", 21)
    os.utime(source / "red" / "1.jpg", (1_600_000_000, 1_600_000_000))
    (source / "blue" / "6.jpg").unlink()
    changed = table.ingest(source, delete_missing=True)
    restored = table.restore(first.version)
    scored = score(spark, model, folder / "serverless", folder / "serverless-predictions")
    evaluated = evaluate(spark, model, folder / "serverless", out=folder / "serverless-page")
    return {"first": first, "changed": changed, "restored": restored, "scored": scored, "evaluated": evaluated}


def test_an_ingest_stores_changes_and_removes_images(story):
    assert (story["preview"].new, story["first"].stored, story["first"].reasons) == (25, 24, {"not_an_image": 1})
    assert (story["again"].stored, story["again"].committed) == (0, False)
    assert (story["changed"].changed, story["changed"].removed) == (1, 1)


def test_a_stream_takes_what_is_new(story):
    assert [batch.stored for batch in story["stream"].batches] == [1]


def test_rows_are_edited_compacted_and_restored(story):
    versions = [story[step].version for step in ("changed", "deleted", "renamed", "restored")]
    assert versions == sorted(set(versions))
    assert story["rows"] == story["first"].stored
    assert sorted(story["quarantined"]) == ["deleted", "not_an_image"]


def test_a_data_frame_of_the_session_is_a_source(story):
    assert story["frame"].stored == 7


def test_the_session_has_its_settings_back(story):
    assert story["after"] == story["before"]


def test_models_predict_score_and_are_evaluated(story):
    assert len(story["predicted"]) == 24
    assert all(row["label_name"] == row["predicted_name"] for row in story["predicted"])
    assert (story["scored"].scored, story["scored"].errors) == (24, 0)
    assert story["rescored"].scored == 0
    assert story["evaluated"].evaluation.accuracy == 1.0


def test_tables_and_models_need_nothing_that_serverless_compute_refuses(story):
    done = story["serverless"]
    assert [done[step].version for step in ("first", "changed", "restored")] == [0, 1, 2]
    assert (done["changed"].changed, done["changed"].removed) == (1, 1)
    assert done["scored"].scored == done["first"].stored
    assert done["evaluated"].evaluation.accuracy == 1.0
    assert "PERSIST TABLE" in story["refusals"]


def test_streams_of_scorings_are_refused_by_name(story):
    assert "this is a Spark Connect session" in story["stream refused"]
    assert not (story["folder"] / "stream").exists()
