"""What an ingest survives: other writers at the same moment, and its own sudden death."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from child_processes import ending_with_this_process, kill_family, stopped_family
from etl_pictures import write_image
from stored_rows import stored_paths

from lakelens import ImageTable
from lakelens.etl.ingest.landing import ingest_available
from lakelens.etl.ingest.results import IngestRequest
from lakelens.etl.sources.source import Source
from lakelens.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]

SIZE = 16
IMAGES, BATCH = 29, 10


def data_files(place: Path) -> set[Path]:
    return set(place.glob("split=*/*.parquet"))


def is_within_the_first_batch(place: Path) -> bool:
    return bool(data_files(place)) and not any((place / "_delta_log").glob("*.json"))


def is_between_two_batches(place: Path) -> bool:
    return (place / "_delta_log" / f"{0:020d}.json").exists() and not is_within_the_second_batch(place)


def is_within_the_second_batch(place: Path) -> bool:
    first = place / "_delta_log" / f"{0:020d}.json"
    if not first.exists() or (place / "_delta_log" / f"{1:020d}.json").exists():
        return False
    return any(file.stat().st_mtime_ns > first.stat().st_mtime_ns for file in data_files(place))


MOMENTS = (is_within_the_first_batch, is_between_two_batches, is_within_the_second_batch)


@pytest.fixture(scope="module")
def killed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[Callable[[Path], bool], Path]]:
    """A landing folder, and the table of its stream as a kill leaves it at each of the moments.

    One stream, in a JVM of its own, passes all of them. It stands still while its table is copied, so that the copy
    holds what a kill at that moment would leave; at the last it is killed. Whoever goes on with a table copies it.
    It commits as the fixture `spark` says.
    """
    root = tmp_path_factory.mktemp("killed")
    source, place = root / "landing", root / "stream" / "t"
    for number in range(IMAGES):
        write_image(source / ("cat" if number % 2 else "dog") / f"{number}.jpg", seed=number)
    (source / "cat" / "0-broken.jpg").write_text("no image")  # its path is the first: in the first batch
    flags = ("--size", str(SIZE), "--stream", "--max-files", str(BATCH), "--master", "local[2]")
    child = subprocess.Popen(
        ending_with_this_process([sys.executable, "-m", "lakelens.jobs.cli", "etl", str(source), str(place), *flags]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    tables = {moment: root / moment.__name__ / "t" for moment in MOMENTS}
    try:
        deadline = time.monotonic() + 300
        for moment, table in tables.items():
            while not moment(place):
                assert child.poll() is None, "the stream ended before it was killed"
                assert time.monotonic() < deadline
                time.sleep(0.005)
            with stopped_family(child, deadline):
                shutil.copytree(place.parent, table.parent)
                assert moment(table)
                if moment is MOMENTS[-1]:
                    kill_family(child)
    finally:
        kill_family(child)
    return source, tables


def assert_complete(place: Path) -> None:
    paths = Counter(stored_paths(place))
    assert (len(paths), set(paths.values())) == (IMAGES, {1})
    assert [Path(file.path).name for file in ImageTable(None, place).quarantine().files] == ["0-broken.jpg"]


def test_a_first_ingest_that_is_killed_is_completed_by_the_next(spark, killed, tmp_path):
    source, tables = killed
    place = tmp_path / "t"
    shutil.copytree(tables[is_within_the_first_batch], place)
    left = data_files(place)
    result = ImageTable(spark, place).ingest(source, size=SIZE)
    assert (result.version, result.stored, result.quarantined) == (0, IMAGES, 1)
    assert_complete(place)
    assert left < data_files(place)  # another writer's, for all that one can know


@pytest.mark.parametrize("moment", [is_between_two_batches, is_within_the_second_batch])
def test_a_stream_that_is_killed_is_completed_by_the_next(spark, killed, tmp_path, moment):
    source, tables = killed
    shutil.copytree(tables[moment].parent, tmp_path / "copy")
    table = ImageTable(spark, tmp_path / "copy" / "t")
    assert table.version == 0
    assert len(stored_paths(table.location)) == BATCH - 1
    result = ingest_available(spark, Table(table.location), IngestRequest(Source(source), {}), BATCH)
    # The bad file is among them when the kill came before it was written down.
    assert (result.rows_in, result.stored) == (IMAGES + 1, IMAGES - BATCH + 1)
    assert result.rows_in == result.stored + result.quarantined + result.skipped
    assert_complete(Path(table.location))
    assert [info.rows for info in reversed(table.history())] == [9, 19, 29] or result.quarantined
    again = table.ingest(source)
    assert (again.stored, again.quarantined, again.skipped, again.committed) == (0, 0, IMAGES + 1, False)
