"""The jobs on a real standalone cluster: a master and two workers, with the wheel sent along or installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from borrowed import clean_environment, make_borrower
from child_processes import run_to_end
from mlflow_stores import put_store
from PIL import Image
from standalone_cluster import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[3]
CLI = ROOT / "jobs" / "cli.py"
# A job that looks at its settings before it ingests in the same session.
CHECKED = """
import sys
import lakelens
from lakelens.jobs.cli import main
conf = lakelens.spark_session().conf
found = conf.get("spark.sql.shuffle.partitions"), conf.get("spark.scheduler.mode")
assert found == ("3", "FAIR"), found
sys.exit(main())
"""
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "3",
    "spark.executor.memory": "1g",
    "spark.driver.memory": "1g",
}


@dataclass
class Cluster(StandaloneCluster):
    """A cluster that takes jobs."""

    python: Path = Path()  # what executors run on; it has no lakelens

    def submit(self, *words: str, code: int | None, python: Path | None = None) -> subprocess.CompletedProcess[str]:
        import pyspark

        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", self.url, *words]
        environment = self.environment | {"PYSPARK_PYTHON": str(python or self.python)}
        return run_to_end(command, code, cwd=self.folder, env=environment, timeout=600)

    def result(
        self, *job: str, options: tuple[str, ...], python: Path | None = None, file: Path = CLI, code: int = 0
    ) -> dict[str, Any]:
        conf = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
        done = self.submit(*options, *conf, str(file), *job, python=python, code=code)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from lakelens.spark.jvm import find_java

    folder = tmp_path_factory.mktemp("standalone")
    environment = {
        **clean_environment(),
        "JAVA_HOME": str(find_java().home),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    cluster = Cluster(folder, environment, python=make_borrower(folder / "bare").python)
    try:
        cluster.start_all("127.0.0.1", {"127.0.0.2": (), "127.0.0.3": ()})
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    run_to_end(command)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def sent(cluster: Cluster, wheel: Path) -> tuple[str, ...]:
    """What sends Delta and lakelens along."""
    from lakelens.spark.session import delta_package

    archive = shutil.copy(wheel, wheel.with_suffix(".zip"))  # which executors of Spark 3.5 import from
    # The folder is of this cluster: the user's holds JARs of several versions.
    ivy = ("--conf", f"spark.jars.ivy={cluster.folder / 'ivy'}")
    return ("--packages", delta_package(), *ivy, "--py-files", str(archive))


def images(folder: Path) -> Path:
    for index in range(12):
        for name, colour in (("blue", (20, 20, 220)), ("red", (220, 20, 20))):
            path = folder / name / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), tuple(value + index for value in colour)).save(path)
    return folder


def test_the_jobs_of_a_pipeline_hand_their_results_on_through_files(cluster, sent):
    folder = cluster.folder
    source, table, store = images(folder / "photos"), folder / "table", put_store(folder)
    file = folder / "results" / "etl.json"
    flags = ("--size", "16", "--result-file", str(file))
    first = cluster.result("etl", str(source), str(table), *flags, options=sent)
    assert (first["version"], first["stored"]) == (0, 24)
    assert json.loads((folder / "results" / "etl.json").read_text()) == first
    flags = ("--slots-per-trial", "2", "--strategy", "horovod_cluster", "--epochs", "2", "--global-batch-size", "8")
    flags += ("--tracking-uri", store)
    flags += ("--set", f"checkpoint_storage.path={folder / 'checkpoints'}")
    trained = cluster.result("train", str(table), *flags, options=sent)
    assert (trained["ranks"], trained["version"]) == (2, 0)
    experiment = folder / "search.yaml"
    keys = {
        "data": {"table": str(table)},
        "hyperparameters": {"global_batch_size": 8, "learning_rate": {"type": "log", "minval": -3, "maxval": -2}},
        "searcher": {"name": "random", "max_trials": 2, "metric": "val_loss", "max_length": {"epochs": 1}},
        "resources": {"strategy": "horovod_cluster"},
        "checkpoint_storage": {"path": str(folder / "searches")},
        "tracking": {"uri": store},
    }
    experiment.write_text(json.dumps(keys))
    searched = cluster.result("search", "run", str(experiment), options=sent)
    assert (searched["version"], searched["trials"]) == (0, {"completed": 2})
    model = f"runs:/{trained['run_id']}"
    predictions = str(folder / "predictions")
    scored = cluster.result("score", model, str(table), predictions, "--tracking-uri", store, options=sent)
    assert (scored["scored"], scored["errors"]) == (24, 0)


def test_delta_comes_from_jars_on_a_disk_and_lakelens_from_an_installed_wheel(cluster, wheel):
    folder = cluster.folder
    jars = sorted((folder / "ivy" / "jars").glob("*.jar"))
    assert any(jar.name.endswith(f"-{version('delta-spark')}.jar") for jar in jars), "the test before has fetched them"
    table = str(folder / "from-jars")
    installed = make_borrower(folder / "installed")
    installed.install(str(wheel))
    options = ("--jars", ",".join(map(str, jars)))
    found = cluster.result(
        "etl", str(images(folder / "others")), table, "--size", "16", options=options, python=installed.python
    )
    assert found["stored"] == 24


def test_a_standalone_cluster_takes_python_jobs_in_client_mode_only(cluster):
    refused = cluster.submit("--deploy-mode", "cluster", str(CLI), "etl", "a", "b", code=None)
    assert refused.returncode != 0
    assert "not supported for python applications on standalone clusters" in refused.stderr


def test_settings_of_spark_submit_win_over_the_defaults_and_a_usage_error_exits_with_2(cluster, sent):
    file = cluster.folder / "checked.py"
    file.write_text(CHECKED)
    arguments = ("etl", str(cluster.folder / "nothing"), str(cluster.folder / "none"))
    found = cluster.result(*arguments, options=sent, file=file, code=2)
    assert found["error"] == "SourceNotFoundError"
