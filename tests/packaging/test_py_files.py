"""The wheel through `spark-submit --py-files`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from lakelens.spark.jvm import find_java
from lakelens.spark.session import _is_worked_in, delta_package

if TYPE_CHECKING:
    from borrowed import Borrower

pytestmark = [pytest.mark.spark, pytest.mark.long]


# Asks an executor what it imports, in a session that lakelens has started, or any other.
JOB = """
import json, sys
if sys.argv[1] == "lakelens":
    import lakelens
    spark = lakelens.spark_session()
else:
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.getOrCreate()

def where(_):
    import lakelens.etl, lakelens.training.trials
    return [lakelens.etl.__file__, lakelens.training.trials.__file__]

files = spark.sparkContext.parallelize([0], 1).map(where).first()
print(json.dumps({"files": files, "id": spark.sparkContext.applicationId}))
spark.stop()
"""


@pytest.fixture
def submit(borrower: Borrower, clean_environment: dict[str, str], tmp_path: Path) -> Callable[[Path, str], list[str]]:
    """Submits the job to a real cluster of one executor, whose Python has no lakelens but the one that is sent."""

    def run(archive: Path, session: str) -> list[str]:
        job = tmp_path / "job.py"
        job.write_text(JOB, encoding="utf-8")
        home = Path(pyspark.__file__).parent
        variables = {
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": str(borrower.python),
            "PYSPARK_DRIVER_PYTHON": str(borrower.python),
        }
        command = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[1,1,1024]"]
        command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.task.maxFailures=1"]
        if session == "lakelens":
            command += ["--packages", delta_package()]
        done = subprocess.run(
            [*command, "--py-files", str(archive), str(job), session],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=240,
            env=clean_environment | variables,
        )
        # local-cluster keeps what its executors were sent below Spark's own folder.
        for application in set(re.findall(r"app-\d{14}-\d{4}", done.stdout + done.stderr)):
            if not _is_worked_in(home / "work" / application):  # by another that started in the same second
                shutil.rmtree(home / "work" / application, ignore_errors=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return list(json.loads(done.stdout.strip().splitlines()[-1])["files"])

    return run


def test_executors_import_the_wheel_that_spark_submit_ships(
    submit: Callable[[Path, str], list[str]], wheel: Path
) -> None:
    assert all(f"{wheel.stem}.zip{os.sep}lakelens" in file for file in submit(wheel, "lakelens"))


def test_executors_import_a_wheel_called_zip_in_any_session(
    submit: Callable[[Path, str], list[str]], wheel: Path, tmp_path: Path
) -> None:
    renamed = tmp_path / "lakelens.zip"
    shutil.copyfile(wheel, renamed)
    assert all(f"lakelens.zip{os.sep}lakelens" in file for file in submit(renamed, "another"))
