"""A table and its predictions on a Connect session that refuses what Databricks' serverless compute refuses."""

from __future__ import annotations

import os

import pytest
from colours import NAMES, SIDE, write_colour
from serverless import refusing_as_serverless

from lakelens import ImageTable
from lakelens.inference.evaluation.evaluate import evaluate
from lakelens.inference.scoring.score import score

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900), pytest.mark.sessions("connect")]


@pytest.fixture
def fresh(spark, connect_url):
    """A session of its own: the shared one may have settings that serverless compute would refuse."""
    session = type(spark).builder.remote(connect_url).create()
    yield session
    session.stop()


def test_tables_and_models_need_nothing_that_serverless_compute_refuses(fresh, checkpoint, tmp_path):
    source, place, model = tmp_path / "source", tmp_path / "table", checkpoint.path
    for name in NAMES:
        for shade in range(8):
            write_colour(source / name / f"{shade}.jpg", name, shade)
    (source / "red" / "bad.jpg").write_text("no image")
    table = ImageTable(fresh, place)
    with refusing_as_serverless() as refusals:
        first = table.ingest(source, size=SIDE, classes=NAMES)  # numbered in the order of the model
        write_colour(source / "red" / "1.jpg", "red", 21)
        os.utime(source / "red" / "1.jpg", (1_600_000_000, 1_600_000_000))
        (source / "blue" / "6.jpg").unlink()
        changed = table.ingest(source, delete_missing=True)
        restored = table.restore(first.version)
        scored = score(fresh, model, place, tmp_path / "predictions")
        evaluated = evaluate(fresh, model, place, out=tmp_path / "page")
    assert [result.version for result in (first, changed, restored)] == [0, 1, 2]
    assert (first.stored, first.reasons) == (24, {"not_an_image": 1})
    assert (changed.changed, changed.removed, scored.scored, evaluated.evaluation.accuracy) == (1, 1, 24, 1.0)
    assert "PERSIST TABLE" in refusals
