"""What an ingest survives: other writers at the same moment, and its own sudden death."""

from __future__ import annotations

import os
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

from lakelens import ImageTable
from lakelens.etl.results import IngestRequest
from lakelens.etl.sources import Source
from lakelens.etl.stream import ingest_available

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SIZE = 16


def paths_of(table: ImageTable) -> Counter[str]:
    return Counter(row["path"] for row in table.read().select("path").collect())


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
    table.ingest(write_manifest(tmp_path / "start.csv", {"sheep": 1}), "manifest", size=SIZE)
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
    paths = paths_of(table)
    assert (len(paths), set(paths.values())) == (1 + 6 + 4 + 3, {1})
    assert sum(result.stored for result in results) == 6 + 4 + 3
    assert sorted(result.skipped for result in results) == [0, 6]
    labels = table.labels()
    assert sorted(labels) == ["cat", "cow", "horse", "sheep"]
    assert len(set(labels.values())) == 4


def kill_when(child: subprocess.Popen[bytes], moment: Callable[[], bool]) -> None:
    """Kills the process, its JVM and its workers as soon as `moment` has come."""
    deadline = time.monotonic() + 300
    while not moment():
        assert child.poll() is None, "the ingest ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def test_a_first_ingest_that_is_killed_is_completed_by_the_next(spark, class_folders, tmp_path):
    source, place = class_folders(cat=40, dog=40), tmp_path / "t"
    child = subprocess.Popen(
        [sys.executable, "-m", "lakelens.jobs.cli", "etl", str(source), str(place), "--master", "local[1]"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    kill_when(child, lambda: any(place.glob("split=*/*.parquet")))
    left = set(place.glob("split=*/*.parquet"))
    assert not list((place / "_delta_log").glob("*.json"))
    result = ImageTable(spark, place).ingest(source, size=SIZE)
    assert (result.version, result.stored) == (0, 80)
    assert set(paths_of(ImageTable(spark, place)).values()) == {1}
    assert left <= set(place.glob("split=*/*.parquet"))  # another writer's, for all that one can know


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
    paths = paths_of(ImageTable(spark, place))
    assert (len(paths), set(paths.values())) == (60, {1})


@pytest.mark.parametrize("moment", ["between two batches", "within a batch"])
def test_a_stream_that_is_killed_is_completed_by_the_next(spark, class_folders, tmp_path, moment):
    source, place = class_folders(cat=60, dog=60), tmp_path / "t"
    (source / "cat" / "broken.jpg").write_text("no image")
    os.utime(source / "cat" / "broken.jpg", (0, 0))  # the oldest: in the first batch
    first = place / "_delta_log" / f"{0:020d}.json"
    flags = ["--stream", "--max-files", "50", "--size", str(SIZE), "--master", "local[2]"]
    child = subprocess.Popen(
        [sys.executable, "-m", "lakelens.jobs.cli", "etl", str(source), str(place), *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def has_come() -> bool:
        if not first.exists() or moment == "between two batches":
            return first.exists()
        return any(file.stat().st_mtime_ns > first.stat().st_mtime_ns for file in place.glob("split=*/*.parquet"))

    kill_when(child, has_come)
    table = ImageTable(spark, place)
    assert table.version == 0
    assert table.read().count() == 49
    request = IngestRequest(Source(source), {})
    result = ingest_available(spark, str(place), request, 50)
    # The bad file is among them when the kill came before it was written down.
    assert (result.rows_in, result.stored) == (121, 71)
    assert result.rows_in == result.stored + result.quarantined + result.skipped
    paths = paths_of(table)
    assert (len(paths), set(paths.values())) == (120, {1})
    assert [Path(row["path"]).name for row in table.read_quarantine().collect()] == ["broken.jpg"]
    assert [info.rows for info in reversed(table.history())] == [49, 99, 120] or result.quarantined
    again = table.ingest(source)
    assert (again.stored, again.quarantined, again.skipped, again.committed) == (0, 0, 121, False)
