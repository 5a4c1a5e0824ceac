"""Rules of scoring as a stream, on a real two-executor Spark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

import pyarrow as pa
import pytest
from child_processes import ending_with_this_process, kill_family
from colours import colour_model, read, row, save, write_table
from deltalake import DeltaTable
from tracked_runs import tracked

from lakelens.errors import (
    InvalidArgumentError,
    NotAnImageTableError,
    SessionError,
    StreamCheckpointError,
    UnknownOptionError,
)
from lakelens.inference.scoring.score import score
from lakelens.inference.scoring.stream import score_stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def path(number: int) -> str:
    return row(number)[0]


def paths(predictions, version: int | None = None) -> list[str]:
    return [one["path"] for one in read(predictions) if version is None or one["version"] == version]


@pytest.fixture(scope="module")
def story(spark, checkpoint, tmp_path_factory):
    """A stream that is started after changes of its table: rows added; one changed, one deleted and all rewritten."""
    root = tmp_path_factory.mktemp("streamed")
    table, predictions = root / "images", root / "predictions"

    def stream(model=checkpoint.path, **options):
        return score_stream(spark, model, table, predictions, checkpoint=root / "checkpoint", **options)

    told = {"root": root, "table": table, "predictions": predictions, "stream": stream}
    write_table(table, [row(0), row(1), row(2, data=b"no image")])
    told["first"] = stream()
    write_table(table, [row(3), row(4)])
    told["added"] = stream()
    told["tracked"] = tracked(str(table))
    _, image, *_, content_hash = row(10)  # another image
    changed = pa.table({"path": [path(0)], "image": [image], "content_hash": [content_hash]})
    rows = DeltaTable(str(table))
    merge = rows.merge(changed, "held.path = new.path", source_alias="new", target_alias="held")
    merge.when_matched_update({"image": "new.image", "content_hash": "new.content_hash"}).execute()
    rows.delete(f"path = '{path(1)}'")
    rows.optimize.compact()
    told["renamed"] = shutil.copytree(checkpoint.path, root / "renamed")
    told["changed"] = stream(told["renamed"])
    told["rows"] = read(predictions)
    return told


def test_rows_added_between_two_runs_are_scored_once(story):
    first, added = story["first"], story["added"]
    assert (first.scored, first.skipped, first.errors, first.table_version) == (3, 0, 1, 0)
    assert (added.scored, added.skipped, added.errors, added.table_version) == (2, 3, 0, 1)
    kept = [one["path"] for one in story["rows"] if one["version"] < 2]
    assert kept == [path(number) for number in range(5)]


def test_a_prediction_has_the_lineage_that_score_gives_it(story, checkpoint):
    lineage = {
        (one["model_uri"], one["checkpoint_digest"], one["table"]) for one in story["rows"] if one["version"] < 2
    }
    assert lineage == {(str(checkpoint.path), checkpoint.digest, str(story["table"]))}
    names = [(one["label_name"], one["predicted_name"]) for one in story["rows"] if one["version"] == 1]
    assert [label for label, _ in names] == [name for _, name in names]
    assert story["tracked"] == {}  # a version for each micro-batch would keep all files


def test_a_changed_image_is_scored_again_a_rewritten_one_is_not_and_a_deleted_row_keeps_its_prediction(story):
    changed = story["changed"]
    assert (changed.scored, changed.errors, changed.table_version) == (1, 0, 4)
    assert [one["path"] for one in story["rows"] if one["version"] > 1] == [path(0)]
    assert [one["path"] for one in story["rows"]].count(path(1)) == 1


def test_the_same_model_under_another_name_goes_on_with_the_stream(story, checkpoint):
    (last,) = [one for one in story["rows"] if one["version"] > 1]
    assert (last["model_uri"], last["checkpoint_digest"]) == (str(story["renamed"]), checkpoint.digest)


def test_score_completes_a_version_from_the_predictions_of_the_stream(spark, story, checkpoint, tmp_path):
    shutil.copytree(story["predictions"], tmp_path / "predictions")
    completed = score(spark, checkpoint.path, story["table"], tmp_path / "predictions", 4)
    # What had an error is tried once more in another version.
    assert (completed.scored, completed.carried, completed.skipped) == (1, 2, 3)


def test_a_stream_that_fails_after_its_commit_scores_no_row_twice(spark, checkpoint, tmp_path):
    table, predictions = tmp_path / "images", tmp_path / "predictions"
    for number in range(3):
        write_table(table, [row(number)])

    def fail(_result):
        raise RuntimeError("between the append and the checkpoint")

    given = {"checkpoint": tmp_path / "checkpoint", "rows_per_commit": 1}
    with pytest.raises(RuntimeError, match="between the append"):
        score_stream(spark, checkpoint.path, table, predictions, on_batch=fail, **given)
    write_table(table, [row(3)])
    told = []
    result = score_stream(spark, checkpoint.path, table, predictions, on_batch=told.append, **given)
    assert (result.scored, told[-1].scored) == (1, 1)
    assert paths(predictions) == [path(number) for number in range(4)]


def test_a_stream_starts_at_the_latest_version_or_a_given_one(spark, checkpoint, tmp_path):
    table = tmp_path / "images"

    def streamed(start):
        given = {"checkpoint": tmp_path / f"from {start}", "start": start}
        return score_stream(spark, checkpoint.path, table, tmp_path / f"predictions {start}", **given)

    for number in range(3):
        write_table(table, [row(number)])
    nothing = streamed("latest")
    assert (nothing.scored, nothing.commits, nothing.batch_id) == (0, 0, None)
    assert streamed(1).scored == 2
    assert paths(tmp_path / "predictions 1") == [path(1), path(2)]
    write_table(table, [row(3)])
    spark.sql(f"OPTIMIZE delta.`{table}`")  # earlier rows are in the new file, too
    assert streamed("latest").scored == 1
    assert paths(tmp_path / "predictions latest") == [path(3)]


def test_the_checkpoint_of_another_model_table_or_start_is_refused_with_both_names(spark, story, checkpoint, tmp_path):
    other = save(colour_model(4.0), tmp_path)
    given = {"checkpoint": story["root"] / "checkpoint"}
    named = (story["table"], story["predictions"])
    with pytest.raises(StreamCheckpointError, match=f"{checkpoint.digest}.*{other.digest}.*--checkpoint"):
        score_stream(spark, other.path, *named, **given)
    write_table(tmp_path / "others", [row(0)])
    with pytest.raises(StreamCheckpointError, match=r"its table is .*images .*others"):
        score_stream(spark, checkpoint.path, tmp_path / "others", named[1], **given)
    with pytest.raises(StreamCheckpointError, match="its start is beginning, and latest was given"):
        story["stream"](start="latest")
    assert read(story["predictions"]) == story["rows"]


def test_another_model_with_its_own_checkpoint_scores_each_row_once_too(spark, story, tmp_path):
    predictions = shutil.copytree(story["predictions"], tmp_path / "predictions")
    other = save(colour_model(4.0), tmp_path)
    result = score_stream(spark, other.path, story["table"], predictions, checkpoint=tmp_path / "checkpoint")
    assert result.scored == 4
    assert len(read(predictions)) == len(story["rows"]) + 4


def test_the_checkpoint_of_a_query_of_others_is_refused(spark, story, checkpoint, tmp_path):
    rows = spark.readStream.format("delta").load(str(story["table"])).select("path")
    query = rows.writeStream.format("delta").option("checkpointLocation", str(tmp_path / "c"))
    query.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    with pytest.raises(StreamCheckpointError, match="that score_stream did not start; give a separate folder"):
        score_stream(spark, checkpoint.path, story["table"], tmp_path / "predictions", checkpoint=tmp_path / "c")


def test_a_stream_that_cannot_run_is_refused_before_it_starts(spark, story, checkpoint, tmp_path):
    named = (spark, checkpoint.path, story["table"], tmp_path / "predictions")
    for error, words, given in (
        (InvalidArgumentError, "trigger_s=0", {"trigger_s": 0}),
        (InvalidArgumentError, "checkpoint=None", {"checkpoint": None}),
        (InvalidArgumentError, "is a table", {"checkpoint": story["table"]}),
        (NotAnImageTableError, "no column 'etag'", {"key": "etag"}),
        (UnknownOptionError, "did you mean 'split'", {"splitt": "test"}),
    ):
        with pytest.raises(error, match=words):
            score_stream(*named, **{"checkpoint": tmp_path / "checkpoint", **given})
    with pytest.raises(InvalidArgumentError, match=r"names a version, .*--start"):
        score_stream(spark, checkpoint.path, f"{story['table']}@1", named[3], checkpoint=tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.long
@pytest.mark.sessions("connect")
def test_a_connect_session_is_refused_before_it_starts(spark, checkpoint, tmp_path):
    write_table(tmp_path / "images", [row(0)])
    given = (checkpoint.path, tmp_path / "images", tmp_path / "predictions")
    with pytest.raises(SessionError, match="this is a Spark Connect session"):
        score_stream(spark, *given, checkpoint=tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_a_continuous_stream_scores_what_comes_until_it_is_interrupted(spark, checkpoint, tmp_path):
    table, predictions = tmp_path / "images", tmp_path / "predictions"
    write_table(table, [row(0)])

    def add_one(result):
        if result.scored == 2:
            raise RuntimeError("enough")
        write_table(table, [row(result.scored)])

    with pytest.raises(RuntimeError, match="enough"):
        score_stream(
            spark,
            checkpoint.path,
            table,
            predictions,
            checkpoint=tmp_path / "checkpoint",
            trigger_s=0.5,
            on_batch=add_one,
        )
    assert paths(predictions) == [path(number) for number in range(2)]
    assert spark.streams.active == []


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_stream_killed_again_and_again_scores_each_row_once(checkpoint, tmp_path):
    table, predictions, rows = tmp_path / "images", tmp_path / "predictions", 60
    for first in range(0, rows, 5):
        write_table(table, [row(number) for number in range(first, first + 5)])
    command = [sys.executable, "-m", "lakelens.jobs.cli", "score", str(checkpoint.path), str(table), str(predictions)]
    command += ["--stream", "--checkpoint", str(tmp_path / "checkpoint"), "--rows-per-commit", "5"]
    command += ["--master", "local[1]"]
    done = 0
    for commits in (2, 5):
        with (tmp_path / "log").open("a") as log:
            job = subprocess.Popen(ending_with_this_process(command), stdout=log, stderr=log, start_new_session=True)
            deadline = time.monotonic() + 240
            while len(list(predictions.glob("_delta_log/*.json"))) < commits and job.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            kill_family(job)
        kept = len(read(predictions))
        assert done < kept < rows, (tmp_path / "log").read_text()
        done = kept
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(ended.stdout.splitlines()[-1])
    assert (result["scored"], result["skipped"]) == (rows - done, done)
    assert paths(predictions) == [path(number) for number in range(rows)]
    assert tracked(str(table)) == {}
