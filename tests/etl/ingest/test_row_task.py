"""Rules of what a task does with its share of a batch."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
import pytest
from etl_pictures import encoded, oriented, picture, write_image

from lakelens.etl.annotations.frames import ImageFrames
from lakelens.etl.files import local_uri
from lakelens.etl.images.recipe import Limits, Recipe
from lakelens.etl.ingest.row_task import BatchTask
from lakelens.etl.model import schema

pytestmark = pytest.mark.unit


def batch_of(*files, times_us=()):
    """The files of a class as an ingest gives them to a task."""
    count = len(files)
    columns = {
        schema.PATH: pa.array([local_uri(str(file).encode()) for file in files]),
        schema.SOURCE_LENGTH: pa.array([8] * count),
        schema.SOURCE_MODIFIED: pa.array(times_us or [0] * count, pa.timestamp("us", tz="UTC")),
        schema.LABEL_NAME: pa.array(["cat"] * count),
        schema.ANNOTATION_HASH: pa.nulls(count, pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def test_a_time_beyond_pythons_dates_is_kept_as_the_last_of_them(tmp_path):
    write_image(tmp_path / "good.jpg")
    (tmp_path / "bad.jpg").write_text("no image")
    (tmp_path / "worse.jpg").write_text("no image")
    far_us, usual_us = 300_000_000_000 * 1_000_000, 1_600_000_000 * 1_000_000
    batch = batch_of(*sorted(tmp_path.iterdir()), times_us=[usual_us, far_us, far_us])
    task = BatchTask(Recipe(), Limits(), {"cat": 0}, "batch")
    usual, last = datetime(2020, 9, 13, 12, 26, 40, tzinfo=timezone.utc), datetime(9999, 12, 30, tzinfo=timezone.utc)
    assert _times(task.outcomes([batch])) == {"bad.jpg": usual, "good.jpg": last, "worse.jpg": last}
    assert _times(task.quarantined_rows([batch])) == {"bad.jpg": usual, "good.jpg": last, "worse.jpg": last}


TURNED = {number: encoded(picture(), "PNG", exif=oriented(number)) for number in (3, 6, 8)}


@pytest.mark.parametrize(
    ("recipe", "data", "source"),
    [
        (Recipe(size=32), TURNED[6], (40, 60, 6, "fit")),
        (Recipe(size=32, resize="crop"), TURNED[3], (60, 40, 3, "crop")),
        (Recipe(resize="none"), TURNED[8], (40, 60, 8, "none")),
        (Recipe(store="original"), TURNED[6], (40, 60, 6, "none")),
        (Recipe(store="original"), encoded(picture()), (60, 40, 1, "none")),
        (Recipe(size=16), encoded(picture(width=1203, height=701)), (1203, 701, 1, "fit")),
    ],
    ids=["fit", "crop", "none", "original turned", "original kept", "decoded at a fraction"],
)
def test_a_row_keeps_what_its_file_was(recipe, data, source, tmp_path):
    (tmp_path / "a.jpg").write_bytes(data)
    (rows,) = BatchTask(recipe, Limits(), {"cat": 0}, "batch").outcomes([batch_of(tmp_path / "a.jpg")])
    (row,) = rows.to_pylist()
    assert tuple(row[schema.SOURCE].values()) == source
    assert ImageFrames.of(row[schema.WIDTH], row[schema.HEIGHT], row[schema.SOURCE]).source == source


def _times(batches) -> dict[str, datetime]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return {row[schema.PATH].rpartition("/")[2]: row[schema.SOURCE_MODIFIED] for row in rows}
