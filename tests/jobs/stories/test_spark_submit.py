"""The command is a spark-submit entry point: one JSON object as the last stdout line, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]


# A job that shows its settings before it ingests in the same session.
SHOWN = """
import json, sys
import lakelens
from lakelens.jobs.cli import main
spark = lakelens.spark_session()
settings = ("spark.master", "spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")
print(json.dumps({name.rpartition(".")[2]: spark.conf.get(name) for name in settings}))
sys.exit(main())
"""


def spark_submit(job: Path, *flags: str, folder: Path) -> tuple[int, list[dict]]:
    """Submits a job; gives its exit code and the JSON objects of its output."""
    import pyspark

    from lakelens.spark.jvm import find_java
    from lakelens.spark.session import delta_package

    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--packages", delta_package()]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    environment = os.environ | {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*command, str(job), *flags],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    try:
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    except ValueError as error:
        raise AssertionError(f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}") from error


def test_settings_of_spark_submit_win_over_the_defaults_and_a_usage_error_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(SHOWN)
    arguments = ("etl", str(tmp_path / "nothing"), str(tmp_path / "table"))
    code, (settings, result) = spark_submit(tmp_path / "shown.py", *arguments, folder=tmp_path)
    assert settings == {"master": "local[2]", "partitions": "3", "snapshotPartitions": "2"}
    assert (code, result["error"]) == (2, "SourceNotFoundError")
    assert "nothing" in result["message"]
