"""Every part once on Spark 4.0 and Delta 4.0, in an environment of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lakelens.spark.java import find_java

pytestmark = [pytest.mark.spark, pytest.mark.long]

PARTS = """
import json
from pathlib import Path
from PIL import Image
import lakelens

def photographs(numbers):
    for number in numbers:
        for red, name in enumerate(("dark", "red")):
            folder = Path("photos", name)
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 16), (120 + number if red else number, 0, 0)).save(folder / f"{number}.png")

def two_ranks():
    import tensorflow as tf
    import lakelens.training.distributed as hvd
    hvd.init()
    return float(hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum))

spark = lakelens.spark_session("local-cluster[2,1,1024]", **{"spark.ui.enabled": "false"})
table = lakelens.ImageTable(spark, "tables/photos")
photographs(range(30))
stored = [table.ingest("photos", size=16).stored]
photographs(range(30, 34))
stored.append(table.ingest("photos").stored)
feed = lakelens.DeltaFeed("tables/photos", version=0)
total = lakelens.HorovodRunner(np=2).run(two_ranks)
run = lakelens.train("tables/photos", version=0, np=2, epochs=1, batch_size=8, validation_split="train", spark=spark)
scored = lakelens.score(spark, f"runs:/{run.run_id}", "tables/photos", "tables/predictions")
print(json.dumps({
    "spark": spark.version, "stored": stored, "rows": feed.rows, "batch": next(feed.as_numpy(8))[0].shape,
    "total": total, "ranks": run.ranks, "scored": scored.scored, "errors": scored.errors,
}))
spark.stop()
"""


@pytest.mark.timeout(900)
def test_each_part_works_on_spark_4(checkout: Path, clean_environment: dict[str, str], tmp_path: Path) -> None:
    made = subprocess.run(
        [str(checkout / ".ci" / "spark-python"), sys.prefix, "4.0"],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment,
    )
    assert made.returncode == 0, made.stderr
    variables = {"PYTHONPATH": str(checkout), "JAVA_HOME": str(find_java().home)}
    done = subprocess.run(
        [made.stdout.strip(), "-c", PARTS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment | variables,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said.pop("spark").startswith("4.0.")
    assert said == {
        "stored": [60, 8],
        "rows": 60,
        "batch": [8, 16, 16, 3],
        "total": 3.0,
        "ranks": 2,
        "scored": 68,
        "errors": 0,
    }
