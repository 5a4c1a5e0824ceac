"""Sessions that lakelens has not started: their Python workers are asked before anything is done."""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from borrowed import archive_of_checkout, make_borrower
from child_processes import run_to_end
from PIL import Image

import lakelens
from lakelens.errors import SessionError
from lakelens.spark import workers
from lakelens.spark.jvm import find_java
from lakelens.spark.workers import difference
from lakelens.training.checkpoints.checkpoint import write_checkpoint

CHECKOUT = Path(__file__).resolve().parents[3]
HERE = platform.python_version()

# A notebook's kernel: lakelens is on the driver's sys.path alone, and another part of the program has made the session.
# An ingest is tried before and after the line that the message gives.
NOTEBOOK = """
import json, os, sys
sys.path.insert(0, {checkout!r})
os.environ["PYSPARK_PYTHON"] = {bare!r}
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
spark = configure_spark_with_delta_pip(builder).getOrCreate()
import lakelens
from lakelens.spark.workers import check_workers

def said(call):
    try:
        return ["done", str(call())]
    except Exception as error:
        return [type(error).__name__, str(error)]

table = lakelens.ImageTable(spark, "table")
ingest = lambda: table.ingest("classes", size=16).stored
found = {{"bare": said(ingest)}}
if {another!r}:
    spark.sparkContext.pythonExec = {another!r}
    found["python"] = said(ingest)
    spark.sparkContext.pythonExec = {bare!r}
spark.sparkContext.addPyFile({archive!r})
found["sent"] = said(ingest)
model = {model!r}
spark.sparkContext.pythonExec = "/no/such/python"
found["udf"] = said(lambda: lakelens.predict_udf(spark, model))
found["score"] = said(lambda: lakelens.score(spark, model, "table", "predictions"))
spark.sparkContext.pythonExec = {bare!r}
found["module"] = said(lambda: check_workers(spark, "a UDF", ("no_such_module",)))
print(json.dumps(found))
"""


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter with every package of this environment but lakelens."""
    return make_borrower(tmp_path / "bare").python


def another_python() -> str | None:
    """An installed Python of another minor version; None where there is none."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for minor in (10, 11, 12, 13):  # those that Spark 4.1 starts
        for found in [*root.glob(f"versions/3.{minor}.*/bin/python3"), Path(f"/usr/bin/python3.{minor}")]:
            if (3, minor) != sys.version_info[:2] and found.exists():
                return str(found)
    return None


def write_empty_model(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_workers_without_this_lakelens_are_found_before_an_ingest_and_the_message_mends_it(bare_python, tmp_path):
    (tmp_path / "classes" / "red").mkdir(parents=True)
    Image.new("RGB", (40, 30), "red").save(tmp_path / "classes" / "red" / "a.jpg")
    model = write_checkpoint(
        tmp_path / "models",
        files={"model.keras": write_empty_model, "state.json": lambda path: path.write_text("{}") and None},
        metadata={"input": {"height": 16, "width": 16, "channels": 3}},
        name="never-loaded",
    )
    script = NOTEBOOK.format(
        checkout=str(CHECKOUT),
        bare=str(bare_python),
        another=another_python(),
        archive=str(archive_of_checkout(tmp_path)),
        model=str(model.path),
    )
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    variables["JAVA_HOME"] = str(find_java().home)
    done = run_to_end([str(bare_python), "-c", script], cwd=tmp_path, timeout=580, env=variables)
    found = json.loads(done.stdout.splitlines()[-1])
    for name, words in {
        "bare": (f"{bare_python} on ", "has no lakelens", "addPyFile(", "PYSPARK_PYTHON=", "cluster library"),
        "python": ("another Python than the driver", "PYSPARK_PYTHON"),
        "udf": (f"scoring with {model.path}", "Spark runs no Python worker on /no/such/python", "PYSPARK_PYTHON"),
        "score": (f"scoring with {model.path}", "Spark runs no Python worker on /no/such/python"),
        "module": ("a UDF: ", "cannot import no_such_module"),
    }.items():
        if name == "python" and name not in found:
            continue
        assert found[name][0] == "ClusterConfigurationError", found[name]
        assert all(word in found[name][1] for word in words), found[name]
        assert "\n" not in found[name][1]
    assert found["sent"] == ["done", "1"]
    # Spark's own account of the workers that did not start has gone nowhere.
    assert "Traceback" not in done.stderr
    assert "\tat org.apache.spark" not in done.stderr
    # And Spark shows warnings alone afterwards, as before.
    assert " INFO " not in done.stderr


@pytest.mark.spark
def test_a_cancelled_check_is_not_taken_for_workers_that_cannot_run(spark, monkeypatch, tmp_path):
    over = tmp_path / "over"

    def never(_):
        while not over.exists():  # what is cancelled goes on in its worker
            time.sleep(0.05)
        yield

    monkeypatch.setattr(workers, "_question", lambda modules: never)
    context = spark.sparkContext

    def cancel() -> None:
        while not context.statusTracker().getActiveJobsIds():
            time.sleep(0.05)
        context.cancelAllJobs()

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    with pytest.raises(
        SessionError, match=r"ingest photos: (\[SPARK_JOB_CANCELLED\] )?Job \d+ cancelled .*; nothing has been done"
    ):
        workers.check_workers(spark, "ingest photos", ["no_such_module"])
    over.touch()
    cancelling.join()


@pytest.mark.unit
@pytest.mark.parametrize(
    ("python", "version", "words"),
    [
        (HERE, lakelens.__version__, ()),
        (HERE, None, ("there has no lakelens", "addPyFile(", "PYSPARK_PYTHON=", "cluster library")),
        (HERE, "0.0.9", (f"there has lakelens 0.0.9, the driver {lakelens.__version__}", "addPyFile(")),
        ("3.1.0", lakelens.__version__, (f"there runs Python 3.1.0, the driver {HERE}", "PYSPARK_PYTHON")),
    ],
)
def test_another_python_or_lakelens_is_named_with_the_way_out(python, version, words):
    said = difference("there", python, version)
    assert (said is None) == (words == ())
    assert all(word in str(said) for word in words), said


# A notebook of Spark Connect: pyspark's own entry point has made the session, which speaks to nobody.
CONNECT_NOTEBOOK = """
import os
from pyspark.sql.connect.session import SparkSession

os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
session = SparkSession(connection="sc://localhost:1")
SparkSession._set_default_and_active_session(session)
import lakelens
from lakelens.errors import SessionError
from lakelens.training.configuration.experiment import ExperimentConfig
from lakelens.training.experiment.strategies import Strategy

print(lakelens.spark_session() is session)
keys = {"entrypoint": "a:B", "data": {"table": "t"}, "hyperparameters": {"global_batch_size": 2}}
config = ExperimentConfig.read({**keys, "searcher": {"max_length": {"epochs": 1}}, "resources": {"slots_per_trial": 2}})
print(Strategy.of(config).name)
SparkSession._active_session.session = None
os.environ["SPARK_REMOTE"] = "sc://localhost:1"
try:
    lakelens.spark_session("local[2]")
except SessionError as error:
    print(error)
import sys
sys.stdout.flush()
os._exit(0)  # at its exit Spark 4.1's client asks the server, and tries again for ten minutes
"""


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_connect_session_is_taken_and_counts_no_slots():
    pytest.importorskip("grpc_status", reason="Spark Connect's client needs grpcio-status")
    done = run_to_end([sys.executable, "-c", CONNECT_NOTEBOOK], timeout=580)
    taken, counted, refused = done.stdout.splitlines()
    assert (taken, counted) == ("True", "horovod_local")
    assert refused.startswith("SPARK_REMOTE is set, and the master local[2] was asked for")
