"""An ingest that would take most of a table out stops before its commit; bad new files never stop one."""

from __future__ import annotations

import json

import pytest
from delta_rows import delta_rows
from etl_pictures import write_image
from made_tables import make_table

from lakelens import ImageTable
from lakelens.errors import IngestLossError, SourceNotFoundError
from lakelens.etl.ingest.loss import FILE_GONE, LossGuard

RECIPE = {"size": 16, "splits": {"train": 1.0}}


def stopped(stored, *lost, allowed=False):
    """Gives the message of what stops; None if nothing does."""
    guard = LossGuard("t", allowed=allowed)
    try:
        for one in lost:
            guard.add(one, lambda: stored)
    except IngestLossError as error:
        return str(error)
    return None


@pytest.mark.unit
def test_more_than_half_of_the_rows_and_a_whole_class_of_twenty_are_too_many():
    stored = {"cat": 60, "dog": 20, "cow": 19}
    assert stopped(stored, {("cat", "truncated"): 49}) is None
    assert stopped(stored, {("cow", "truncated"): 19}) is None
    half = stopped(stored, {("cat", "truncated"): 49}, {("cat", FILE_GONE): 1})
    assert "50 of 99 stored rows (truncated: 49; the source no longer holds their files: 1)" in half
    assert "--allow-loss, or allow_loss=True" in half
    assert "20 of 99 stored rows, and every row of 'dog' (20)" in stopped(stored, {("dog", "empty"): 20})
    assert stopped(stored, {("dog", "empty"): 20}, allowed=True) is None
    assert stopped({}, {}) is None


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_an_ingest_that_loses_most_rows_stops_before_its_commit(spark, tmp_path):
    source = tmp_path / "source"
    cats = [source / "cat" / f"{number}.jpg" for number in range(3)]
    for number, cat in enumerate(cats):
        write_image(cat, seed=number)
    write_image(source / "dog" / "0.jpg", seed=9)
    table = ImageTable(spark, make_table(tmp_path / "t", source, **RECIPE))
    for number in range(6):
        (source / "cat" / f"new{number}.jpg").write_text("never was an image")
    cats[0].write_text("no image any more")
    assert (table.ingest(source).quarantined, table.version) == (7, 1)
    assert (table.history()[0].rows, table.history()[0].class_counts) == (3, {"cat": 2, "dog": 1})
    rows = delta_rows(table.location)
    cats[1].unlink()
    cats[2].write_text("no image any more")
    with pytest.raises(IngestLossError, match=rf"2 of 3 stored rows \({FILE_GONE}: 1; not_an_image: 1\)"):
        table.ingest(source, delete_missing=True)
    assert (table.version, delta_rows(table.location)) == (1, rows)


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_coco_is_listed_again_after_a_failure_and_a_named_file_of_other_images_is_a_loss(spark, tmp_path):
    source, table = tmp_path / "s", ImageTable(spark, tmp_path / "t")
    with pytest.raises(SourceNotFoundError, match="does not exist"):
        table.ingest(source, "coco")
    images = []
    for number in range(3):
        write_image(source / "train2017" / f"{number}.jpg", seed=number)
        images.append({"id": number, "file_name": f"{number}.jpg"})
    found = source / "annotations" / "instances_train2017.json"
    found.parent.mkdir()
    found.write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    assert table.ingest(source, "coco", **RECIPE).stored == 3
    again = table.ingest(source, "coco", annotations=str(found))
    assert (again.skipped, again.committed, again.quarantined) == (3, False, 0)
    other = tmp_path / "mine.json"
    other.write_text(json.dumps({"images": [{"id": 1, "file_name": "elsewhere.jpg"}], "categories": []}))
    with pytest.raises(IngestLossError, match=r"3 of 3 stored rows \(annotation_missing: 3\)"):
        table.ingest(source, "coco", annotations=str(other))
    assert (table.version, len(delta_rows(table.location))) == (0, 3)
    allowed = table.ingest(source, "coco", annotations=str(other), allow_loss=True)
    assert (allowed.version, allowed.quarantined, delta_rows(table.location)) == (1, 4, [])
