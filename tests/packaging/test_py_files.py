"""The wheel through `spark-submit --py-files`."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pyspark
import pytest
from borrowed import clean_environment
from child_processes import run_to_end

from lakelens.spark.jvm import find_java
from lakelens.spark.session import _is_worked_in, delta_package

# Asks an executor what it imports.
JOB = """
import json
import lakelens

def where(_):
    import lakelens.etl, lakelens.training.trials
    return [lakelens.etl.__file__, lakelens.training.trials.__file__]

spark = lakelens.spark_session()
print(json.dumps(spark.sparkContext.parallelize([0], 1).map(where).first()))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.long
def test_executors_import_the_wheel_that_spark_submit_ships(wheel, borrower, tmp_path):
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    home, python = Path(pyspark.__file__).parent, str(borrower.python)  # which has no lakelens
    variables = {"JAVA_HOME": str(find_java().home), "SPARK_HOME": str(home)}
    variables |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    command = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[1,1,1024]"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.task.maxFailures=1"]
    command += ["--packages", delta_package(), "--py-files", str(wheel), str(tmp_path / "job.py")]
    done = run_to_end(command, None, cwd=tmp_path, timeout=240, env=clean_environment() | variables)
    # local-cluster keeps what its executors were sent below Spark's own folder.
    for application in set(re.findall(r"app-\d{14}-\d{4}", done.stdout + done.stderr)):
        if not _is_worked_in(home / "work" / application):  # by another that started in the same second
            shutil.rmtree(home / "work" / application, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-3000:]
    files = json.loads(done.stdout.strip().splitlines()[-1])
    assert all(f"{wheel.stem}.zip{os.sep}lakelens" in file for file in files)
