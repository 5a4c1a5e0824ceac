"""An ingest whose table's disk is full, by a session of its own: our error, nothing lost, and the next one goes on."""

from __future__ import annotations

import pytest
from etl_pictures import write_image
from full_disk import run_on_small_disk

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(500)]

SCRIPT = """
import lakelens
from lakelens import ImageTable
from lakelens.jobs.cli import main

source, spare = given
settings = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.local.dir": spare}
spark = lakelens.spark_session("local[2]", conf=settings)
spark.sparkContext.setLogLevel("OFF")
table = ImageTable(spark, disk / "t")
table.ingest(f"{source}/first", size=64)
empty = fill()
errors = [told(lambda: ImageTable(spark, place).ingest(f"{source}/second")) for place in (disk / "t", disk / "new")]
exit_code = main(["etl", f"{source}/second", str(disk / "t")])
version = table.version
empty()
result = table.ingest(f"{source}/second")
print(json.dumps([errors, exit_code, version, result.stored, table.class_counts()]))
"""


def test_an_ingest_into_a_full_disk_says_so_and_the_next_one_goes_on(tmp_path):
    for folder, label in (("first", "cat"), ("second", "dog")):
        for number in range(3):
            write_image(tmp_path / folder / label / f"{number}.jpg", seed=number if label == "cat" else 100 + number)
    (tmp_path / "spare").mkdir()
    given = (str(tmp_path), str(tmp_path / "spare"))
    errors, exit_code, version, stored, counts = run_on_small_disk(
        tmp_path / "disk", SCRIPT, given, size="16m", timeout_s=400
    )
    for kind, message in errors:
        assert kind == "NoSpaceError", message
        assert "no space is left on a disk" in message
        assert "\n" not in message
    assert (exit_code, version, stored) == (1, 0, 3)
    assert counts == {"cat": 3, "dog": 3}
