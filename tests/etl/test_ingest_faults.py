"""What an ingest survives: other writers at the same moment, and its own sudden death."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from etl_pictures import write_image
from stored_rows import stored_paths

from lakelens import ImageTable
from lakelens.etl.results import IngestRequest
from lakelens.etl.sources import Source
from lakelens.etl.stream import ingest_available

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SIZE = 16


def write_manifest(path: Path, classes: dict[str, int]) -> Path:
    lines = ["path,label"]
    for name, count in classes.items():
        for number in range(count):
            write_image(path.parent / name / f"{number}.jpg", seed=len(name) * 100 + number)
            lines.append(f"{name}/{number}.jpg,{name}")
    path.write_text("\n".join(lines))
    return path


def test_two_writers_at_once_both_finish_and_nothing_is_doubled(spark, tmp_path):
    # Each brings the cats, and a class that the other has not.
    first = write_manifest(tmp_path / "first.csv", {"cat": 6, "horse": 4})
    second = write_manifest(tmp_path / "second.csv", {"cat": 6, "cow": 3})
    table = ImageTable(spark, tmp_path / "t")
    write_image(tmp_path / "start" / "sheep" / "1.jpg")
    table.ingest(tmp_path / "start", size=SIZE)
    results, errors = [], []
    gate = threading.Barrier(2)

    def ingest(source: Path) -> None:
        gate.wait()
        try:
            results.append(ImageTable(spark, tmp_path / "t").ingest(source, "manifest"))
        except Exception as error:  # noqa: BLE001  shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=ingest, args=(source,)) for source in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    paths = Counter(stored_paths(table.location))
    assert (len(paths), set(paths.values())) == (1 + 6 + 4 + 3, {1})
    assert sum(result.stored for result in results) == 6 + 4 + 3
    assert sorted(result.skipped for result in results) == [0, 6]
    labels = table.labels()
    assert sorted(labels) == ["cat", "cow", "horse", "sheep"]
    assert len(set(labels.values())) == 4


def test_of_two_first_writers_neither_takes_the_files_of_the_other(spark, tmp_path):
    """The second begins while the first writes: it finds a log without a version."""
    place, errors, results = tmp_path / "t", [], []
    sources = [tmp_path / "one", tmp_path / "other"]
    for number, source in enumerate(sources):
        for seed in range(30):
            write_image(source / "cat" / f"{seed}.jpg", seed=100 * number + seed, width=400, height=400)

    def ingest_one(source: Path) -> None:
        try:
            results.append(ImageTable(spark, place).ingest(source, size=SIZE))
        except Exception as error:  # noqa: BLE001  whatever it is, it is shown below
            errors.append(error)

    first = threading.Thread(target=ingest_one, args=(sources[0],))
    first.start()
    while first.is_alive() and not (place / "_delta_log").exists():
        time.sleep(0.001)
    ingest_one(sources[1])
    first.join()
    assert errors == []
    assert sorted(result.version for result in results) == [0, 1]
    assert [result.stored for result in results] == [30, 30]
    paths = Counter(stored_paths(place))
    assert (len(paths), set(paths.values())) == (60, {1})


def kill_when(moment: Callable[[], bool], source: Path, place: Path, *flags: str) -> None:
    """Starts an ingest of its own, and kills it, its JVM and its workers as soon as `moment` has come."""
    child = subprocess.Popen(
        [sys.executable, "-m", "lakelens.jobs.cli", "etl", str(source), str(place), "--size", str(SIZE), *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while not moment():
            assert child.poll() is None, "the ingest ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


STREAM = ("--stream", "--max-files", "50", "--master", "local[2]")


def landing_folder(root: Path) -> Path:
    """120 images and a bad file, which is the oldest: in the first batch."""
    source = root / "landing"
    for number in range(120):
        write_image(source / ("cat" if number % 2 else "dog") / f"{number}.jpg", seed=number)
    (source / "cat" / "broken.jpg").write_text("no image")
    os.utime(source / "cat" / "broken.jpg", (0, 0))
    return source


def is_within_the_second_batch(place: Path) -> bool:
    first = place / "_delta_log" / f"{0:020d}.json"
    if not first.exists():
        return False
    return any(file.stat().st_mtime_ns > first.stat().st_mtime_ns for file in place.glob("split=*/*.parquet"))


@pytest.fixture(scope="module")
def twice_killed(spark, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, set[Path]]:
    """A table whose first ingest was killed, and then a stream in its second batch; with the files that the first left.

    Whoever goes on with it copies it.
    """
    root = tmp_path_factory.mktemp("twice_killed")
    source, place = landing_folder(root), root / "t"
    kill_when(lambda: any(place.glob("split=*/*.parquet")), source, place, "--master", "local[1]")
    left = set(place.glob("split=*/*.parquet"))
    assert left
    assert not list((place / "_delta_log").glob("*.json"))
    kill_when(lambda: is_within_the_second_batch(place), source, place, *STREAM)
    return source, place, left


def test_a_first_ingest_that_is_killed_is_completed_by_the_next(twice_killed):
    _, place, left = twice_killed
    paths = stored_paths(place, 0)
    assert (len(paths), len(set(paths))) == (49, 49)
    assert left <= set(place.glob("split=*/*.parquet"))  # another writer's, for all that one can know


def assert_the_next_completes(spark, source: Path, place: Path) -> None:
    table = ImageTable(spark, place)
    assert table.version == 0
    assert len(stored_paths(place)) == 49
    result = ingest_available(spark, str(place), IngestRequest(Source(source), {}), 50)
    # The bad file is among them when the kill came before it was written down.
    assert (result.rows_in, result.stored) == (121, 71)
    assert result.rows_in == result.stored + result.quarantined + result.skipped
    paths = Counter(stored_paths(place))
    assert (len(paths), set(paths.values())) == (120, {1})
    assert [Path(file.path).name for file in table.quarantine().files] == ["broken.jpg"]
    assert [info.rows for info in reversed(table.history())] == [49, 99, 120] or result.quarantined
    again = table.ingest(source)
    assert (again.stored, again.quarantined, again.skipped, again.committed) == (0, 0, 121, False)


def test_a_stream_that_is_killed_within_a_batch_is_completed_by_the_next(spark, twice_killed, tmp_path):
    source, place, _ = twice_killed
    for folder in (place, Path(f"{place}_quarantine")):
        shutil.copytree(folder, tmp_path / folder.name)
    assert_the_next_completes(spark, source, tmp_path / place.name)


def test_a_stream_that_is_killed_between_two_batches_is_completed_by_the_next(spark, tmp_path):
    source, place = landing_folder(tmp_path), tmp_path / "t"
    kill_when((place / "_delta_log" / f"{0:020d}.json").exists, source, place, *STREAM)
    assert_the_next_completes(spark, source, place)
