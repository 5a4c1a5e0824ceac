"""What an ingest survives: other writers at the same moment, and its own sudden death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from lakelens import ImageTable
from lakelens.etl.snapshot import open_snapshot

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SIZE = 16

CHILD = """
import sys, lakelens
spark = lakelens.spark_session("local[2]", **{"spark.ui.enabled": "false"})
print("ready", flush=True)
print(lakelens.ImageTable(spark, sys.argv[2]).ingest(sys.argv[1], size=int(sys.argv[3])), flush=True)
"""


def paths_of(table: ImageTable) -> Counter[str]:
    return Counter(row["path"] for row in table.read().select("path").collect())


def test_two_writers_at_once_both_finish_and_nothing_is_doubled(spark, class_folders, tmp_path):
    first, second = class_folders("first", cat=8, dog=8), class_folders("second", cat=8, cow=8)
    table = ImageTable(spark, tmp_path / "t")
    table.ingest(class_folders("start", cat=2), size=SIZE)
    results, errors = {}, []
    gate = threading.Barrier(3)

    def ingest(source: Path) -> None:
        gate.wait()
        try:
            results.setdefault(source.name, []).append(ImageTable(spark, tmp_path / "t").ingest(source))
        except Exception as error:  # noqa: BLE001  shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=ingest, args=(source,)) for source in (first, second, first)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    paths = paths_of(table)
    assert len(paths) == 2 + 16 + 16
    assert set(paths.values()) == {1}
    assert sorted(result.stored for result in results["first"]) == [0, 16]
    assert [result.stored for result in results["second"]] == [16]
    labels = table.labels()
    assert sorted(labels) == ["cat", "cow", "dog"]
    assert len(set(labels.values())) == 3


@pytest.mark.parametrize("delay_s", [4.0])
def test_an_ingest_that_is_killed_is_completed_by_the_next(spark, class_folders, tmp_path, delay_s):
    source = class_folders(cat=150, dog=150)
    (source / "cat" / "broken.jpg").write_text("no image")
    place = tmp_path / "t"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(source), str(place), str(SIZE)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    for line in child.stdout:
        if line.startswith("ready"):
            break
    time.sleep(delay_s)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    table = ImageTable(spark, place)
    result = table.ingest(source, size=SIZE)
    assert result.rows_in == 301 == result.stored + result.quarantined + result.skipped
    paths = paths_of(table)
    assert (len(paths), set(paths.values())) == (300, {1})
    assert [Path(row["path"]).name for row in table.quarantine().collect()] == ["broken.jpg"]
    again = table.ingest(source)
    assert (again.stored, again.quarantined, again.skipped, again.committed) == (0, 0, 301, False)
    assert open_snapshot(place).rows == 300
