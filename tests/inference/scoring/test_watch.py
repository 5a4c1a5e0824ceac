"""Rules of `score` with `watch_s`, on a real two-executor Spark."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time

import pyarrow as pa
import pytest
from colours import read, row, write_table
from deltalake import DeltaTable, write_deltalake
from spark_jobs import jobs_of
from tracked_runs import tracked
from watched_model import rows_run, watched_model

from lakelens.errors import NotAnImageTableError, ScoringPaused
from lakelens.inference.scoring.score import score

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def path(number: int) -> str:
    return row(number)[0]


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def watched(spark, model, table, predictions, steps, **options):
    """Watches a table; after each version that is scored the next step changes the table or ends the watch."""
    results, ahead = [], iter(steps)

    def next_step(result):
        results.append(result)
        next(ahead)()

    with pytest.raises(ScoringPaused) as ended:
        score(spark, model, table, predictions, watch_s=0.05, on_pass=next_step, **options)
    return results, ended.value


@pytest.fixture(scope="module")
def story(spark, checkpoint, tmp_path_factory):
    """A table that gets rows, another schema and another table's place while it is watched."""
    root = tmp_path_factory.mktemp("watched")
    table, predictions = root / "images", root / "predictions"

    jobs_of_looks = []

    def add_rows():
        with jobs_of(spark) as jobs:
            time.sleep(1.5)  # thirty looks
        jobs_of_looks.append(jobs)
        write_table(table, [row(3), row(4)])

    def add_rows_later():
        threading.Thread(target=add_rows, daemon=True).start()

    def change_schema():
        held = DeltaTable(table).to_pyarrow_table().drop_columns(["label_name"])
        held = held.append_column("camera", pa.nulls(len(held), pa.string()))
        at = held.schema.get_field_index("label")
        held = held.set_column(at, "label", held["label"].cast(pa.int64()))
        write_deltalake(table, held, mode="overwrite", schema_mode="overwrite", partition_by=["split"])

    def replace_table():
        shutil.rmtree(table)
        write_table(table, [row(5)])

    write_table(table, [row(0), row(1), row(2, data=b"no image")])
    steps = (add_rows_later, change_schema, replace_table, interrupt)
    results, ended = watched(spark, checkpoint.path, table, predictions, steps)
    return {"table": table, "results": results, "ended": ended, "rows": read(predictions), "jobs": jobs_of_looks[0]}


def test_rows_that_arrive_are_scored_and_the_predictions_of_each_version_are_complete(story):
    first, added = story["results"][:2]
    assert (first.table_version, first.scored, first.errors, first.carried) == (0, 3, 1, 0)
    # As by `score`: an image with an error is tried again in another version.
    assert (added.table_version, added.scored, added.errors, added.carried) == (1, 3, 1, 2)
    assert (added.scored + added.skipped, added.commits) == (5, 1)
    for version, rows in ((0, 3), (1, 5)):
        found = [one["path"] for one in story["rows"] if one["version"] == version and one["path"] != path(5)]
        assert found == [path(number) for number in range(rows)]


def test_columns_that_come_and_go_and_other_types_do_not_end_a_watch(story):
    changed = story["results"][2]
    assert (changed.table_version, changed.scored, changed.carried) == (2, 1, 4)
    last = [one for one in story["rows"] if one["version"] == 2]
    assert [(one["path"], one["label"], one["label_name"]) for one in last] == [
        (path(number), number % 3, None) for number in range(5)
    ]


def test_another_table_at_the_location_is_noticed_whatever_its_version(story):
    replaced = story["results"][3]
    assert (replaced.table_version, replaced.scored, replaced.carried) == (0, 1, 0)
    assert [one["path"] for one in story["rows"] if one["batch_id"] == replaced.batch_id] == [path(5)]


def test_an_interrupted_watch_names_its_signal_and_keeps_no_version_from_vacuum(story):
    assert (story["ended"].signal_number, len(story["results"])) == (signal.SIGINT, 4)
    assert "SIGINT has ended the watch" in str(story["ended"])
    assert tracked(str(story["table"])) == {}


def test_looking_for_a_version_starts_no_job(story):
    assert not story["jobs"], str(story["jobs"])


def test_sigterm_in_the_middle_of_a_part_ends_the_watch_after_it_with_all_its_rows(spark, tmp_path):
    table, predictions, rows, part = tmp_path / "images", tmp_path / "predictions", 12, 4
    for first in range(0, rows, part):
        write_table(table, [row(number) for number in range(first, first + part)])
    model, custom = watched_model(tmp_path)

    def terminate_once_a_row_has_run():
        while not rows_run(tmp_path):
            time.sleep(0.01)
        interrupt(signal.SIGTERM)

    sender = threading.Thread(target=terminate_once_a_row_has_run, daemon=True)
    sender.start()
    options = {"custom_objects": custom, "rows_per_commit": part, "batch_bytes": 1}
    results, ended = watched(spark, model.path, table, predictions, (), **options)
    sender.join()
    kept = len(read(predictions))
    assert (results, ended.signal_number) == ([], signal.SIGTERM)
    assert 0 < kept < rows
    assert (kept % part, rows_run(tmp_path)) == (0, kept)
    assert tracked(str(table)) == {}
    result = score(spark, model.path, table, predictions, custom_objects=custom)
    assert (result.scored, result.skipped, rows_run(tmp_path)) == (rows - kept, kept, rows)


def test_an_error_ends_a_watch_and_the_next_call_scores_what_remains(spark, checkpoint, tmp_path):
    table, predictions = tmp_path / "images", tmp_path / "predictions"
    write_table(table, [row(0)])
    results = []

    def lose_the_image(result):
        results.append(result)
        held = DeltaTable(table).to_pyarrow_table().drop_columns(["image"])
        write_deltalake(table, held, mode="overwrite", schema_mode="overwrite", partition_by=["split"])

    with pytest.raises(NotAnImageTableError, match="images@1 has no column 'image'"):
        score(spark, checkpoint.path, table, predictions, watch_s=0.05, on_pass=lose_the_image)
    DeltaTable(table).restore(0)
    write_table(table, [row(1)])
    results += watched(spark, checkpoint.path, table, predictions, (interrupt,))[0]
    assert [(result.table_version, result.scored, result.carried) for result in results] == [(0, 1, 0), (3, 1, 1)]
