"""Rules of scoring in parts: what is committed stays, and each row is scored once whoever else is at work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from child_processes import ending_with_this_process, kill_family
from colours import NAMES, read, row, write_table
from deltalake import DeltaTable
from tracked_runs import tracked
from watched_model import rows_run, watched_model

from lakelens.errors import ModelMismatchError, ScoringFailedError
from lakelens.inference.scoring.score import score

pytestmark = pytest.mark.spark

ROWS, PART = 24, 6


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Files of two splits, in a folder whose name means something to those who look for files by a pattern."""
    folder = tmp_path_factory.mktemp("tables")
    for first in range(0, ROWS, PART // 2):
        rows = range(first, first + PART // 2)
        write_table(folder / "plain", [row(number, split="test" if number < 4 else "train") for number in rows])
    return (folder / "plain").rename(folder / "photos {2} a")


def test_a_table_with_deleted_rows_and_renamed_columns_is_scored_in_parts_too(spark, checkpoint, tmp_path):
    place = tmp_path / "table"
    for numbers in (range(4), range(4, 8)):
        write_table(place, [row(number) for number in numbers])
    versions = "'delta.minReaderVersion' = '3', 'delta.minWriterVersion' = '7'"
    features = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true'"
    spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ({versions}, {features})")
    for old, new in (("path", "uri"), ("image", "picture")):
        spark.sql(f"ALTER TABLE delta.`{place}` RENAME COLUMN {old} TO {new}")
    spark.sql(f"DELETE FROM delta.`{place}` WHERE uri = '{row(5)[0]}'")  # noqa: S608
    named = {"path_column": "uri", "image_column": "picture"}
    result = score(spark, checkpoint.path, place, tmp_path / "predictions", rows_per_commit=1, **named)
    assert (result.scored, result.commits) == (7, 2)
    rows = read(tmp_path / "predictions")
    assert [one["path"] for one in rows] == [row(number)[0] for number in range(8) if number != 5]
    assert [one["predicted_name"] for one in rows] == [one["label_name"] for one in rows]


@pytest.mark.long  # Spark tries a task four times, and each starts a worker
def test_a_model_that_fails_on_the_way_fails_the_scoring_and_no_row(spark, table, tmp_path):
    model, custom = watched_model(tmp_path)
    given = (spark, model.path, table, tmp_path / "predictions")
    (tmp_path / "watching" / "device_gone").write_text(str(ROWS // 2))
    before = tracked(str(table))
    with pytest.raises(ScoringFailedError, match="the device is gone"):
        score(*given, custom_objects=custom, rows_per_commit=PART)
    kept = read(tmp_path / "predictions")
    assert 0 < len(kept) < ROWS
    assert {one["error"] for one in kept} == {None}
    assert tracked(str(table)) == before
    (tmp_path / "watching" / "device_gone").unlink()
    result = score(*given, custom_objects=custom, rows_per_commit=PART)
    assert (result.scored, result.skipped, result.errors) == (ROWS - len(kept), len(kept), 0)


def test_two_scorings_at_once_share_the_parts_and_add_each_row_once(spark, table, tmp_path):
    model, custom = watched_model(tmp_path)
    predictions = tmp_path / "predictions"

    def one(_):
        return score(spark, model.path, table, predictions, custom_objects=custom, rows_per_commit=PART)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(one, range(2)))
    assert sum(result.scored for result in results) == ROWS
    rows = read(predictions)
    assert [one["path"] for one in rows] == [row(number)[0] for number in range(ROWS)]
    assert [one["predicted_name"] for one in rows] == [one["label_name"] for one in rows]
    assert [one["split"] for one in rows] == ["test" if number < 4 else "train" for number in range(ROWS)]
    assert rows_run(tmp_path) < 2 * ROWS - 3


def test_a_row_whose_error_may_have_passed_is_tried_again_and_no_other(spark, table, tmp_path):
    model, custom = watched_model(tmp_path)
    given = (spark, model.path, table, tmp_path / "predictions")
    picky = tmp_path / "watching" / "not_red"
    picky.touch()
    first = score(*given, custom_objects=custom)
    reds = ROWS // len(NAMES)
    assert (first.scored, first.errors) == (ROWS, reds)
    picky.unlink()
    second = score(*given, custom_objects=custom)
    assert (second.scored, second.skipped, second.errors) == (reds, ROWS - reds, 0)
    rows = read(tmp_path / "predictions")
    assert [one["path"] for one in rows] == [row(number)[0] for number in range(ROWS)]
    assert {one["error"] for one in rows} == {None}


def test_a_model_of_other_classes_scores_the_version_of_the_call_with_one_warning_and_strict_refuses_it(
    spark, checkpoint, tmp_path, caplog
):
    place = tmp_path / "animals"
    write_table(place, [row(0), row(1)])
    labels = json.dumps({"cat": 0, "dog": 1})
    DeltaTable(place).alter.set_table_properties({"lakelens.labels": labels}, raise_if_not_exists=False)
    with pytest.raises(ModelMismatchError, match="0 is 'red' in the model and 'cat' in the table"):
        score(spark, checkpoint.path, place, tmp_path / "predictions", strict=True)
    assert not (tmp_path / "predictions").exists()

    def session():
        write_table(place, [row(2)])
        return spark

    result = score(session, checkpoint.path, place, tmp_path / "predictions")
    assert (result.version, result.table_version, result.scored) == (0, 1, 2)
    assert caplog.text.count("may not fit") == 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_killed_scoring_job_loses_only_the_part_that_it_was_at(checkpoint, tmp_path):
    table, predictions, rows = tmp_path / "images", tmp_path / "predictions", 60
    for first in range(0, rows, 5):
        write_table(table, [row(number) for number in range(first, first + 5)])
    command = [sys.executable, "-m", "lakelens.jobs.cli", "score", str(checkpoint.path), str(table), str(predictions)]
    command += ["--rows-per-commit", "5", "--master", "local[1]"]
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(ending_with_this_process(command), stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 240
        while len(list(predictions.glob("_delta_log/*.json"))) < 4 and job.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert list(tracked(str(table))) == [11], (tmp_path / "log").read_text()
        kill_family(job)
    assert tracked(str(table)) == {}
    kept = read(predictions)
    assert 0 < len(kept) < rows
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["scored"], result["skipped"]) == (rows - len(kept), len(kept))
    assert [one["path"] for one in read(predictions)] == [row(number)[0] for number in range(rows)]
    assert list(tracked(str(table))) == [11]
