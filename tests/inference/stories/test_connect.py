"""A table and its predictions on a Spark Connect session, whose driver is another process."""

from __future__ import annotations

import json
import os

import pytest
from colours import COLOURS, NAMES, colour_model
from connect_server import connect_session
from model_store import Store
from PIL import Image
from pyspark.errors import AnalysisException
from serverless import refusing_as_serverless

from lakelens import ImageTable
from lakelens.errors import SessionError
from lakelens.inference.evaluation.evaluate import evaluate
from lakelens.inference.promotion import promote
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
        framed = ImageTable(spark, folder / "framed")
        told["frame"] = framed.ingest(spark.read.format("binaryFile").load(f"{source}/blue/*.jpg"), size=SIDE)
        write_layouts(folder)
        told["layouts"] = {
            layout: ImageTable(spark, folder / f"{layout}-table").ingest(place, layout, size=SIDE)
            for layout, place in layouts_in(folder).items()
        }
        listed = ImageTable(spark, folder / "manifest-table")
        damage = f"UPDATE delta.`{listed.location}` SET label = 7 WHERE label_name = 'red'"  # noqa: S608
        spark.sql(damage).collect()
        told["repaired"] = listed.repair()
        told["repaired again"] = listed.repair(dry_run=True)
        told["vacuumed"] = listed.vacuum(0, allow_short_retention=True)
        told["left"] = listed.read().count()
        told["after"] = [spark.conf.get(name, None) for name in WATCHED]
        told["rows"] = table.read().count()
        told["quarantined"] = [row["reason"] for row in table.read_quarantine().collect()]
        images = table.read().select("path", "label_name", predict_udf(spark, checkpoint.path)("image").alias("found"))
        told["predicted"] = images.select("label_name", "found.predicted_name").collect()
        told["scored"] = score(spark, checkpoint.path, folder / "table", folder / "predictions")
        told["rescored"] = score(spark, checkpoint.path, folder / "table", folder / "predictions")
        told["evaluated"] = evaluate(spark, checkpoint.path, folder / "table", out=folder / "page")
        store = Store(folder)
        told["promoted"] = promote(
            f"runs:/{store.run(colour_model())}",
            "colours",
            spark=spark,
            if_better="accuracy",
            on=f"{store.table}@0",
            tracking_uri=store.uri,
        )
        with pytest.raises(SessionError) as refused:
            score_stream(spark, checkpoint.path, folder / "table", folder / "streamed", checkpoint=folder / "stream")
        told["stream refused"] = str(refused.value)
        with refusing_as_serverless() as told["refusals"]:
            told["serverless"] = on_serverless(spark, source, folder, checkpoint.path)
            told["beyond"] = beyond_serverless(spark, folder)
    return told


SIDES = ("xmin", "ymin", "xmax", "ymax")
BOX = (2, 3, 10, 12)


def layouts_in(folder):
    return {"voc": folder / "voc", "coco": folder / "coco", "manifest": folder / "list.csv"}


def write_layouts(folder):
    """The same two images, annotated in each layout."""
    names = ("red", "blue")
    for name in names:
        for place in ("voc/JPEGImages", "coco/train2017", "listed"):
            write_colour(folder / place / f"{name}.jpg", name)
        corners = "".join(f"<{key}>{side}</{key}>" for key, side in zip(SIDES, BOX, strict=True))
        xml = f"<annotation><object><name>{name}</name><bndbox>{corners}</bndbox></object></annotation>"
        (folder / "voc" / "Annotations").mkdir(exist_ok=True)
        (folder / "voc" / "Annotations" / f"{name}.xml").write_text(xml)
    coco = {
        "images": [{"id": number, "file_name": f"{name}.jpg"} for number, name in enumerate(names)],
        "annotations": [{"image_id": number, "category_id": number, "bbox": [2, 3, 8, 9]} for number in range(2)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(names)],
    }
    (folder / "coco" / "annotations").mkdir()
    (folder / "coco" / "annotations" / "instances_train2017.json").write_text(json.dumps(coco))
    (folder / "list.csv").write_text("path,label\n" + "".join(f"listed/{name}.jpg,{name}\n" for name in names))


def beyond_serverless(spark, folder):
    """What serverless compute refuses of local rows and streams; the reasons."""
    import pandas as pd

    rate = spark.readStream.format("rate").load().writeStream.format("noop")
    calls = (
        lambda: spark.createDataFrame(pd.DataFrame({"content": [bytes(129_000_000)]})),
        rate.option("checkpointLocation", str(folder / "rate")).start,
        rate.trigger(processingTime="1 second").start,
    )
    reasons = []
    for call in calls:
        with pytest.raises(AnalysisException) as refused:
            call()
        reasons.append(str(refused.value).partition("]")[0].removeprefix("["))
    return reasons


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


def test_every_layout_is_read(story):
    results = story["layouts"]
    assert {layout: (result.stored, result.reasons) for layout, result in results.items()} == {
        layout: (2, {}) for layout in ("voc", "coco", "manifest")
    }


def test_damaged_class_numbers_are_repaired_and_old_files_removed(story):
    assert (story["repaired"].committed, story["repaired again"].findings) == (True, ())
    assert story["vacuumed"].files
    assert story["left"] == 2


def test_a_model_is_promoted_by_its_evaluation(story):
    assert story["promoted"].promoted


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


def test_local_rows_and_streams_that_serverless_compute_refuses_are_refused_here(story):
    endless = "INFINITE_STREAMING_TRIGGER_NOT_SUPPORTED"
    assert story["beyond"] == ["LOCAL_RELATION_SIZE_LIMIT_EXCEEDED", endless, endless]


def test_streams_of_scorings_are_refused_by_name(story):
    assert "this is a Spark Connect session" in story["stream refused"]
    assert not (story["folder"] / "stream").exists()
