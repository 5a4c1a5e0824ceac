"""Two processes that write into one new table at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from etl_pictures import write_image
from stored_rows import stored_rows

from lakelens import ImageTable

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

# Each process says that its session is there, waits for a line, and ingests.
INGEST = """
import json, sys
import lakelens
spark = lakelens.spark_session("local[1]", conf={"spark.ui.enabled": "false", "spark.driver.memory": "1g"})
table = lakelens.ImageTable(spark, sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
result = table.ingest(sys.argv[2], size=16)
print(json.dumps([result.version, result.stored]), flush=True)
"""


def test_two_first_ingests_at_once_both_store_their_files_once(tmp_path: Path) -> None:
    place, names = tmp_path / "table", ("cat", "dog")
    for seed, name in enumerate(names):
        for number in range(4):
            write_image(tmp_path / f"photos of {name}" / name / f"{number}.jpg", seed=10 * seed + number)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", INGEST, str(place), str(tmp_path / f"photos of {name}")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    try:
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [json.loads(process.stdout.readline()) for process in started]
        assert [process.wait() for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
    assert sorted(results) == [[0, 4], [1, 4]]
    rows = [(row.path, row.label_name, row.label) for row in stored_rows(place)]
    labels = ImageTable(None, place).labels()
    assert len(rows) == len({path for path, _, _ in rows}) == 8
    assert sorted(labels.values()) == [0, 1]
    assert {(name, label) for _, name, label in rows} == set(labels.items())
