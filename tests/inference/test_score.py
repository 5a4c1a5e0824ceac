"""Rules of scoring, on a real two-executor Spark."""

from __future__ import annotations

import pytest
from colours import NAMES, image_of, mixed_model, mixer, read, row, save, write_table
from pyspark.sql import functions

from lakelens.errors import InvalidArgumentError, PredictionsSchemaError
from lakelens.inference.evaluate import evaluate
from lakelens.inference.models import resolve_model
from lakelens.inference.predictions import PredictionsTable
from lakelens.inference.score import score
from lakelens.inference.shipping import ship

pytestmark = pytest.mark.spark


def test_each_row_is_scored_once_and_says_by_what(spark, make_table, checkpoint, tmp_path):
    table = make_table([row(n, split="test" if n % 2 else "train") for n in range(12)])
    first = score(spark, checkpoint.path, table, None, tmp_path / "predictions")
    assert (first.scored, first.skipped, first.errors, first.table_version) == (12, 0, 0, 0)
    again = score(spark, checkpoint.path, table, 0, tmp_path / "predictions")
    assert (again.scored, again.skipped, again.errors) == (0, 12, 0)
    assert again.version == first.version
    rows = read(spark, tmp_path / "predictions")
    assert [one.predicted_name for one in rows] == [NAMES[n % 3] for n in range(12)]
    assert [one.prediction for one in rows] == [one.label for one in rows]
    one = rows[0]
    assert one.probability == pytest.approx(max(one.probabilities))
    assert sum(one.probabilities) == pytest.approx(1, abs=1e-5)
    assert {(r.model_uri, r.checkpoint_digest, r.table, r.version, r.error) for r in rows} == {
        (str(checkpoint.path), checkpoint.digest, str(table), 0, None)
    }
    assert {r.split for r in rows} == {"test", "train"}


def test_an_image_that_was_scored_in_another_version_is_carried_over(spark, make_table, checkpoint, tmp_path):
    table = make_table([row(n) for n in range(6)])
    score(spark, checkpoint.path, table, 0, tmp_path / "predictions")
    write_table(spark, table, [row(n) for n in range(6, 10)])
    second = score(spark, checkpoint.path, table, 1, tmp_path / "predictions")
    assert (second.scored, second.skipped, second.carried) == (4, 6, 6)
    rows = [one for one in read(spark, tmp_path / "predictions") if one.version == 1]
    assert [one.predicted_name for one in rows] == [NAMES[n % 3] for n in range(10)]
    assert evaluate(spark, tmp_path / "predictions", table_version=1).accuracy == 1
    with pytest.raises(InvalidArgumentError, match="several scorings"):
        evaluate(spark, tmp_path / "predictions")


def test_a_row_that_cannot_be_scored_has_an_error_and_fails_no_job(spark, make_table, checkpoint, tmp_path):
    rows = [
        row(0),
        row(1, data=b"no image"),
        row(2, data=None),
        row(3, form="raw_rgb"),
        row(4, data=b"\x00", form="raw_rgb"),
    ]
    table = make_table(rows)
    result = score(spark, checkpoint.path, table, None, tmp_path / "predictions")
    assert (result.scored, result.errors) == (5, 3)
    said = [(one.predicted_name, (one.error or "").partition(":")[0]) for one in read(spark, tmp_path / "predictions")]
    assert said == [("red", ""), (None, "not_an_image"), (None, "null"), ("red", ""), (None, "wrong_size")]


def test_a_predictions_table_with_other_columns_is_refused_before_anything_runs(
    spark, make_table, checkpoint, tmp_path
):
    table = make_table([row(0)])
    spark.createDataFrame([("a", "b")], "path STRING, prediction STRING").write.format("delta").save(
        str(tmp_path / "other")
    )
    with pytest.raises(PredictionsSchemaError, match="'content_hash'"):
        score(spark, checkpoint.path, table, None, tmp_path / "other")
    with pytest.raises(InvalidArgumentError, match="no such split; it has test"):
        score(spark, checkpoint.path, table, None, tmp_path / "predictions", split="tset")
    assert not (tmp_path / "predictions").exists()


def test_rows_of_a_copied_predictions_table_are_not_scored_again(spark, make_table, checkpoint, tmp_path):
    table = make_table([row(n) for n in range(4)])
    score(spark, checkpoint.path, table, None, tmp_path / "predictions")
    read_rows = spark.read.format("delta").load(str(tmp_path / "predictions"))
    read_rows.where("path NOT LIKE '%00003.jpg'").write.format("delta").save(str(tmp_path / "copy"))
    result = score(spark, checkpoint.path, table, None, tmp_path / "copy")
    assert (result.scored, result.skipped, result.carried) == (1, 3, 0)
    assert [one.path for one in read(spark, tmp_path / "copy")] == [row(n)[0] for n in range(4)]


def test_of_two_that_append_from_the_same_state_only_one_does(spark, make_table, checkpoint, tmp_path):
    table = make_table([row(n) for n in range(4)])
    score(spark, checkpoint.path, table, None, tmp_path / "predictions")
    results = PredictionsTable(spark, str(tmp_path / "predictions"), digest=checkpoint.digest, table=str(table))
    state = results.state()
    again = results.read(state.version).withColumn("batch_id", functions.lit("first"))
    results.append(again, state)
    results.append(again.withColumn("batch_id", functions.lit("second")), state)
    assert results.written("first").rows == 4
    assert results.written("second") is None


def test_reused_python_workers_load_a_model_once_and_a_corrected_class_of_the_same_name_anew(spark, tmp_path):
    wrong, right = mixer(1), mixer(0)
    model = resolve_model(save(mixed_model(wrong), tmp_path).path)
    red = image_of("red")

    def predicted(layer):
        shipped = ship(spark, model, batch_bytes=1 << 20, custom_objects={"Mixer": layer})

        def task(_):
            import os

            from lakelens.inference.predictor import LOADED

            before = LOADED.loads
            (name,) = shipped.predictor().predict([red]).names
            yield os.getpid(), LOADED.loads - before, name

        return spark.sparkContext.parallelize(range(8), 8).mapPartitions(task).collect()

    first, again, corrected = predicted(wrong), predicted(wrong), predicted(right)
    assert {name for _, _, name in first + again} == {"green"}
    assert {name for _, _, name in corrected} == {"red"}
    for tasks in (first + again, corrected):
        assert sum(loads for _, loads, _ in tasks) <= len({worker for worker, _, _ in tasks})
