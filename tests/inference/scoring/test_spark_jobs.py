"""The fixed cost of scoring and evaluation, counted in Spark jobs."""

from __future__ import annotations

import pytest
from colours import read, row, write_table
from deltalake import DeltaTable
from spark_jobs import Jobs, jobs_of

from lakelens.inference.evaluation.evaluate import evaluate
from lakelens.inference.scoring.score import score

pytestmark = pytest.mark.spark


def counted(jobs: Jobs) -> list[str]:
    """Leaves out Delta's own job that reads the log of a version once, whoever asks for the version first."""
    return [site for site in jobs.sites if "Compute snapshot" not in site]


def test_a_repeat_with_nothing_to_do_is_answered_by_the_log_and_an_evaluation_is_few_jobs(spark, checkpoint, tmp_path):
    images, predictions = tmp_path / "images", tmp_path / "predictions"
    write_table(images, [row(number, split="test" if number % 3 else "train") for number in range(9)])
    score(spark, checkpoint.path, images, predictions, split="test")
    with jobs_of(spark) as first:
        assert score(spark, checkpoint.path, images, predictions).scored == 3  # those of the other split
    with jobs_of(spark) as repeated:
        again = score(spark, checkpoint.path, images, predictions)
        of_split = score(spark, checkpoint.path, images, predictions, split="test")
    assert (again.scored, again.skipped, again.commits, again.version) == (0, 9, 0, 1)
    assert (of_split.scored, of_split.skipped) == (0, 6)
    assert len(repeated) == 0, str(repeated)
    assert len(counted(first)) <= 12, str(first)
    # The log and the rows of Delta, their answers, the counts and the worst mistakes.
    for kept in (predictions, None):
        with jobs_of(spark) as given:
            evaluate(spark, checkpoint.path, images, split=None, predictions=kept, record=False)
        assert len(counted(given)) <= 5, str(given)

    # What somebody has deleted is scored again.
    DeltaTable(predictions).delete(f"path = '{read(predictions)[0]['path']}'")
    assert score(spark, checkpoint.path, images, predictions).scored == 1
    with jobs_of(spark) as repeated:
        assert score(spark, checkpoint.path, images, predictions).scored == 0
    assert len(repeated) == 0, str(repeated)

    # The rows of the version before are copied in the commit of the new ones.
    write_table(images, [row(number) for number in range(9, 12)])
    with jobs_of(spark) as grown:
        more = score(spark, checkpoint.path, images, predictions)
    assert (more.scored, more.carried, more.commits) == (3, 9, 1)
    assert len(counted(grown)) <= 13, str(grown)


def test_a_repeat_asks_the_rows_only_whether_one_with_an_error_is_to_be_tried_again(spark, checkpoint, tmp_path):
    images, predictions = tmp_path / "images", tmp_path / "predictions"
    write_table(images, [row(0), row(1, data=b"no image")])
    assert score(spark, checkpoint.path, images, predictions).errors == 1
    with jobs_of(spark) as repeated:
        assert score(spark, checkpoint.path, images, predictions).skipped == 2
    looked = [site for site in counted(repeated) if "Filtering files" not in site]
    assert len(looked) <= 1, str(repeated)
