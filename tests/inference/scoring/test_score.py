"""Rules of scoring."""

from __future__ import annotations

import json
import re
import shutil

import pyarrow as pa
import pytest
from colours import NAMES, image_of, mixed_model, mixer, read, row, save, write_table
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions

from lakelens import progress
from lakelens.errors import InvalidArgumentError, NotADeltaTableError
from lakelens.inference.evaluation.evaluate import evaluate
from lakelens.inference.model.shipping import prediction_arrays, ship
from lakelens.inference.model.user_code import UserCode
from lakelens.inference.scoring.predictions import PredictionsTable
from lakelens.inference.scoring.score import score
from lakelens.inference.udf import predict_udf
from lakelens.training.checkpoints.references import resolve_model
from lakelens.training.tasks.registry import task_of

pytestmark = pytest.mark.spark

GOOD = 13
BAD = {13: "not_an_image", 14: "null", 15: "wrong_size"}
LEFT_OUT = 3
FIRST, SECOND = GOOD + len(BAD), GOOD + len(BAD) + 4


def given(number: int) -> tuple:
    """A row of the image table by its number."""
    more = {
        12: {"form": "raw_rgb"},
        13: {"data": b"no image"},
        14: {"data": None},
        15: {"data": b"\x00", "form": "raw_rgb"},
    }
    return row(number, split="test" if number % 2 else "train", **more.get(number, {}))


@pytest.fixture(scope="module")
def story(spark, checkpoint, tmp_path_factory):
    """Two versions of a table, the first scored twice.

    The second is scored into another writer's copy of the predictions, which has their rows, but one, without the
    numbers of the appends.
    """
    root = tmp_path_factory.mktemp("scored")
    table, predictions, copy = root / "images", root / "predictions", root / "copy"
    write_table(table, [given(number) for number in range(FIRST)])
    shown = {}

    class Shown(progress.ProgressLines):
        def reached(self, place, images, total):
            shown.update(images=images, total=total)

        def measured(self, name, value):
            shown[name] = value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "ProgressLines", Shown)
        told = {"first": score(spark, checkpoint.path, table, predictions), "shown": shown}
    told["again"] = score(spark, checkpoint.path, table, predictions, 0)
    rows = [one for one in read(predictions) if one["path"] != given(LEFT_OUT)[0]]
    kinds = pa.schema(DeltaTable(str(predictions)).schema().to_arrow())
    write_deltalake(str(copy), pa.Table.from_pylist(rows, schema=kinds))
    write_table(table, [given(number) for number in range(FIRST, SECOND)])
    told["second"] = score(spark, checkpoint.path, table, copy, 1)
    return {"table": table, "predictions": predictions, "copy": copy, **told}


# The first, so that those after it find workers that have imported TensorFlow.
def test_reused_python_workers_load_a_model_once_and_a_corrected_class_of_the_same_name_anew(spark, tmp_path):
    wrong, right = mixer(1), mixer(0)
    model = resolve_model(save(mixed_model(wrong), tmp_path).path)
    red = image_of("red")

    def predicted(layer):
        shipped = ship(spark, model, batch_bytes=1 << 20, code=UserCode({"Mixer": layer}))

        def task(_):
            import os

            from lakelens.inference.model.shipping import _loaded

            before = _loaded.cache_info().misses
            predictor = shipped.predictor()
            (name,) = prediction_arrays(predictor, predictor.predict([red]))["predicted_name"].to_pylist()
            yield os.getpid(), _loaded.cache_info().misses - before, name

        return spark.sparkContext.parallelize(range(2), 2).mapPartitions(task).collect()

    first, again, corrected = predicted(wrong), predicted(wrong), predicted(right)
    assert {name for _, _, name in first + again} == {"green"}
    assert {name for _, _, name in corrected} == {"red"}
    for tasks in (first + again, corrected):
        assert sum(loads for _, loads, _ in tasks) <= len({worker for worker, _, _ in tasks})


def test_the_images_that_are_done_and_bad_are_shown_meanwhile(story):
    assert story["shown"] == {"images": FIRST, "total": FIRST, "bad": len(BAD)}


def test_each_row_is_scored_once_and_says_by_what_and_has_an_error_if_it_cannot_be_scored(story, checkpoint):
    first, again = story["first"], story["again"]
    assert (first.scored, first.skipped, first.carried, first.table_version) == (FIRST, 0, 0, 0)
    assert (first.errors, story["second"].errors) == (len(BAD), len(BAD))
    assert (again.scored, again.skipped, again.errors) == (0, FIRST, 0)
    assert again.version == first.version
    rows = read(story["predictions"], first.version)
    assert [one["path"] for one in rows] == [given(number)[0] for number in range(FIRST)]
    assert [one["predicted_name"] for one in rows[:GOOD]] == [NAMES[n % 3] for n in range(GOOD)]
    assert [one["prediction"] for one in rows[:GOOD]] == [one["label"] for one in rows[:GOOD]]
    one = rows[0]
    assert one["probability"] == pytest.approx(max(one["probabilities"]))
    assert sum(one["probabilities"]) == pytest.approx(1, abs=1e-5)
    assert {(r["model_uri"], r["checkpoint_digest"], r["table"], r["version"]) for r in rows} == {
        (str(checkpoint.path), checkpoint.digest, str(story["table"]), 0)
    }
    assert {r["error"] for r in rows[:GOOD]} == {None}
    bad = [(one["predicted_name"], one["error"].partition(":")[0]) for one in rows[GOOD:]]
    assert bad == [(None, reason) for reason in BAD.values()]
    assert {r["split"] for r in rows} == {"test", "train"}


def test_onnx_runtime_predicts_the_same_in_workers_without_tensorflow(spark, story, checkpoint, tmp_path, monkeypatch):
    # Another environment has other Python workers.
    monkeypatch.setitem(spark.sparkContext.environment, "LAKELENS_TEST", "onnxruntime")
    result = score(spark, checkpoint.path, story["table"], tmp_path / "predictions", 0, engine="onnxruntime")
    assert (result.scored, result.errors, result.engine) == (FIRST, len(BAD), "ONNX Runtime")
    rows, expected = read(tmp_path / "predictions"), read(story["predictions"], story["first"].version)
    assert [(one["path"], one["error"]) for one in rows] == [(one["path"], one["error"]) for one in expected]
    for one, other in zip(rows[:GOOD], expected[:GOOD], strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    image = spark.createDataFrame([(bytearray(image_of("blue")),)], "image binary")
    predict = predict_udf(spark, checkpoint.path, engine="onnxruntime")
    assert image.select(predict("image").predicted_name).collect()[0][0] == "blue"

    def imported(frames):
        import sys

        for frame in frames:
            names = ",".join(sorted({"tensorflow", "keras", "onnxruntime"} & set(sys.modules)))
            yield frame.assign(names=names)

    found = {row.names for row in spark.range(0, 4, 1, 4).mapInPandas(imported, "id long, names string").collect()}
    assert "onnxruntime" in found
    assert found <= {"onnxruntime", ""}


def test_an_image_that_was_scored_in_another_version_is_carried_over_also_from_a_copy_of_the_predictions(story):
    second = story["second"]
    # What had an error is tried once more in another version.
    assert (second.scored, second.skipped, second.carried) == (SECOND - GOOD + 1, GOOD - 1, GOOD - 1)
    rows = {version: [one for one in read(story["copy"]) if one["version"] == version] for version in (0, 1)}
    assert len(rows[0]) == FIRST - 1
    expected = [None if n in BAD else NAMES[n % 3] for n in range(SECOND)]
    assert [one["predicted_name"] for one in rows[1]] == expected
    # The one writer's times are in UTC, the other's say so.
    times = [{one["path"]: one["scored_at"].replace(tzinfo=None) for one in of} for of in rows.values()]
    again = [path for path, time in times[1].items() if time != times[0].get(path)]
    assert again == [given(number)[0] for number in (LEFT_OUT, *range(GOOD, SECOND))]


def test_a_table_of_others_is_scored_by_the_key_that_tells_its_images_apart(spark, checkpoint, tmp_path, caplog):
    """Its columns have other names, its classes are texts that the table numbers, and it has no content_hash."""
    table, predictions = tmp_path / "images", tmp_path / "predictions"

    def append(*numbers):
        of = [NAMES[number % 3] for number in numbers]
        columns = {"uri": [f"/{number}" for number in numbers], "picture": [image_of(name) for name in of], "kind": of}
        more = {"changed": pa.array([1] * len(of), pa.int32()), "split": ["test"] * len(of)}
        write_deltalake(str(table), pa.table(columns | more), mode="append")

    append(0, 1, 2)
    labels = json.dumps({name: number for number, name in enumerate(NAMES)})
    DeltaTable(table).alter.set_table_properties({"lakelens.labels": labels}, raise_if_not_exists=False)
    append(3)
    columns = {"path_column": "uri", "image_column": "picture", "label_column": "kind"}
    first = score(spark, checkpoint.path, table, predictions, 1, key="changed", **columns)
    assert (first.scored, "images shared with other versions" in caplog.text) == (3, False)
    found = [(one["label"], one["label_name"], one["predicted_name"]) for one in read(predictions)]
    assert found == [(number, name, name) for number, name in enumerate(NAMES)]
    given = (spark, checkpoint.path, f"{table}@2")
    kept = {"predictions": predictions, "split": "test", "record": False, **columns}
    found = evaluate(*given, key="changed", **kept).evaluation
    rows = read(predictions)
    assert (found.rows, found.accuracy, len(rows)) == (4, 1.0, 3 + 4)
    scored_at = [{one["path"]: one["scored_at"] for one in rows if one["version"] == version} for version in (1, 2)]
    assert {path for path, time in scored_at[1].items() if time == scored_at[0].get(path)} == {"/0", "/1", "/2"}
    # Which rows of a file are of the split is not in the log, so that the keys are compared.
    with pytest.raises(InvalidArgumentError, match=r"none has the value of key='content_hash': .*--key"):
        evaluate(*given, **kept)


def test_a_table_without_a_key_is_scored_with_a_warning_and_anew_once_it_was_made_anew(
    spark, checkpoint, tmp_path, caplog
):
    table, predictions = tmp_path / "images", tmp_path / "predictions"

    def make(shift):
        labels = [(number + shift) % 3 for number in range(3)]
        columns = {"path": ["/0", "/1", "/2"], "image": [image_of(NAMES[label]) for label in labels], "label": labels}
        write_deltalake(str(table), pa.table(columns))

    make(0)
    assert score(spark, checkpoint.path, table, predictions).scored == 3
    assert re.search(r"images@0 has no column 'content_hash'.*\(--key\)", caplog.text)
    shutil.rmtree(table)
    make(1)  # the same paths with other images
    found = evaluate(spark, checkpoint.path, table, split=None, predictions=predictions, record=False).evaluation
    assert (found.rows, found.accuracy) == (3, 1.0)


def test_tables_of_a_catalog_are_scored_evaluated_and_predicted_by_their_names(spark, story, checkpoint):
    spark.sql("CREATE DATABASE `1_nature`")
    names = ("spark_catalog.`1_nature`.`2024_photos`", "`spark_catalog`.`1_nature`.predictions")
    try:
        spark.sql(f"CREATE TABLE `1_nature`.`2024_photos` USING delta LOCATION '{story['table']}'")
        assert score(spark, checkpoint.path, *names, 0).scored == FIRST
        found = evaluate(spark, checkpoint.path, f"{names[0]}@0", predictions=names[1], split=None, record=False)
        assert found.evaluation.rows == FIRST
        assert spark.table("`1_nature`.predictions").count() == FIRST
        spark.udf.register("predict", predict_udf(spark, checkpoint.path))
        predicted = "predict(image, format, height, width).predicted_name = label_name"
        assert spark.sql(f"SELECT * FROM `1_nature`.`2024_photos` VERSION AS OF 0 WHERE {predicted}").count() == GOOD  # noqa: S608
    finally:
        spark.sql("DROP DATABASE `1_nature` CASCADE")
    with pytest.raises(NotADeltaTableError, match=r"no_such\.predictions: the catalog has no schema no_such; create"):
        score(spark, checkpoint.path, story["table"], "no_such.predictions")


def test_of_two_that_append_from_the_same_state_only_one_does(spark, story, checkpoint, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(story["predictions"], copy)
    task, table = task_of(checkpoint), str(story["table"])
    results = PredictionsTable(spark, str(copy), task=task, digest=checkpoint.digest, table=table, storage_options={})
    state = results.state()
    again = results.read(state.version).withColumn("batch_id", functions.lit("first"))
    after, is_added = results.append(again, state, "first")
    assert is_added
    assert results.append(again.withColumn("batch_id", functions.lit("second")), state, "second") == (after, False)
    assert [one["batch_id"] for one in read(copy, after.version)].count("first") == FIRST
    assert len(read(copy)) == 2 * FIRST


def test_a_row_of_another_split_with_the_same_path_and_content_is_scored_too(spark, checkpoint, tmp_path):
    table, predictions = tmp_path / "images", tmp_path / "predictions"
    write_table(table, [row(0, split="train"), row(0, split="test")])
    assert score(spark, checkpoint.path, table, predictions, split="train").scored == 1
    other = tmp_path / "other"
    shutil.copytree(predictions, other)
    for place, split in ((predictions, "test"), (other, None)):
        result = score(spark, checkpoint.path, table, place, split=split)
        assert (result.scored, result.carried) == (1, 0)
        assert sorted(one["split"] for one in read(place)) == ["test", "train"]
