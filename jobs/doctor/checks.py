"""What the doctor tries, each in a separate process, because an import may crash or hang it.

A check returns what it saw, or raises what is wrong. `python -m lakelens.jobs.doctor.checks NAME` prints that as one
JSON line.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...errors import LakelensError, RankFailedError
from ...locations import without_password
from ...spark.java import SHORT_LIVED, find_java
from ...spark.port import set_log_level
from .runtime import examined, installed

_SUPPORTED_PYTHON = ((3, 10), (3, 13))


@dataclass(frozen=True)
class Finding:
    """What one check saw: one line of the doctor."""

    part: str = field(default="", kw_only=True)  # Name of the part; the doctor adds it
    version: str | None  # The part's version; None when it could not be read
    ok: bool  # Whether the part does what the main job needs
    detail: str  # What was tried, or what went wrong and the way out
    seconds: float = field(default=0.0, kw_only=True)  # How long trying took; the doctor adds it

    def line(self) -> str:
        """Formats the finding for people."""
        return f"{self.part:<11} {self.version or '-':<10} {'ok    ' if self.ok else 'BROKEN'}  {self.detail}"


_PACKAGES = {"delta": "delta-spark"}


def _fine(part: str, detail: str) -> Finding:
    return Finding(installed(_PACKAGES.get(part, part)), ok=True, detail=detail)


def check_tensorflow() -> Finding:
    """Multiplies two matrices and counts the GPUs that TensorFlow sees."""
    import keras
    import tensorflow as tf

    product = float(tf.reduce_sum(tf.matmul(tf.ones((4, 4)), tf.ones((4, 4)))))
    if product != 64.0:
        raise LakelensError(f"a 4 x 4 product sums to {product}, not to 64")
    gpus = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    names = ", ".join(str(details.get("device_name", "GPU")) for details in gpus) or "no GPU, so CPU"
    return Finding(tf.__version__, ok=True, detail=f"Keras {keras.__version__}; {names}")


def check_horovod() -> Finding:
    """Sums one number over two real ranks."""
    from ...horovod_build import problem
    from ...training.runner.runner import KERAS_MODULES, HorovodRunner

    wrong = problem()
    if wrong is not None:
        raise LakelensError(wrong)
    runner = HorovodRunner(np=-2, use_gpu=False, driver_log_verbosity="log_callback_only", preload=KERAS_MODULES)
    total = runner.run(_sum_over_ranks)
    if total != 3.0:
        raise LakelensError(f"ranks 0 and 1 summed 1 and 2 to {total}, not to 3")
    return _fine("horovod", "two ranks, one allreduce through Gloo")


def _sum_over_ranks() -> float:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    return float(hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum))


def check_petastorm() -> Finding:
    """Reads a Delta table through the adapters: Petastorm's own reader needs pyarrow 14 or older, these do not."""
    import pyarrow
    from deltalake import write_deltalake

    from ...training.feed.feed import DeltaFeed

    rows = 100
    with tempfile.TemporaryDirectory() as folder:
        columns = {"id": list(range(rows)), "image": [bytes([number]) for number in range(rows)]}
        write_deltalake(folder, pyarrow.table(columns))
        feed = DeltaFeed(folder, label_column="id")
        with feed.petastorm_reader(["id"], num_epochs=1) as reader:
            read = sorted(int(number) for batch in reader for number in batch.id)
    if read != list(range(rows)):
        raise LakelensError(f"{len(read)} rows read of {rows} written")
    return _fine("petastorm", f"pyarrow {pyarrow.__version__}; {rows} rows of a table read")


def check_delta() -> Finding:
    """Writes two versions of a Delta table through Spark and reads version 0 back."""
    from ...spark.session import spark_session

    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session(
            "local[1]",
            app_name="lakelens-doctor",
            conf={
                "spark.driver.extraJavaOptions": SHORT_LIVED,
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "1",
                "spark.sql.warehouse.dir": str(Path(folder) / "warehouse"),
            },
        )
        set_log_level(spark, "OFF")
        table = str(Path(folder) / "table")
        spark.range(3).write.format("delta").save(table)
        spark.range(5).write.format("delta").mode("overwrite").save(table)
        rows = spark.read.format("delta").option("versionAsOf", 0).load(table).count()
        spark_version = spark.version
        spark.stop()
    if rows != 3:
        raise LakelensError(f"version 0 was written with 3 rows and is read with {rows}")
    return _fine("delta", f"Spark {spark_version}; two versions written, version 0 read")


def check_mlflow() -> Finding:
    """Asks the MLflow store that is configured; without one, keeps a run in a temporary store."""
    import mlflow

    configured = os.environ.get("MLFLOW_TRACKING_URI")
    if configured:
        shown = without_password(configured)
        mlflow.MlflowClient(tracking_uri=configured).search_experiments(max_results=1)
        return Finding(mlflow.__version__, ok=True, detail=f"the store at MLFLOW_TRACKING_URI={shown} answers")
    with tempfile.TemporaryDirectory() as folder:
        client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
        run = client.create_run(client.create_experiment("doctor", artifact_location=f"file://{folder}/artifacts"))
        client.log_metric(run.info.run_id, "metric", 0.5)
        kept = client.get_run(run.info.run_id).data.metrics.get("metric")
    if kept != 0.5:
        raise LakelensError(f"a metric was logged as 0.5 and is read as {kept}")
    return Finding(mlflow.__version__, ok=True, detail="MLFLOW_TRACKING_URI is not set; a run kept in sqlite and read")


def check_python() -> Finding:
    """Compares Python's version with those that lakelens runs on."""
    found, (oldest, newest) = sys.version_info[:2], _SUPPORTED_PYTHON
    fits = oldest <= found <= newest
    detail = sys.executable if fits else "lakelens runs on Python 3.10 to 3.13; use one of them"
    return Finding(platform.python_version(), ok=fits, detail=detail)


def check_runtime() -> Finding:
    """Names the runtime, and compares its packages with what the installed lakelens asks for."""
    return Finding(*examined())


def check_java() -> Finding:
    """Finds the Java that Spark starts on."""
    java = find_java()
    return Finding(java.version, ok=True, detail=f"{java.home} (from {java.origin})")


# In the order of the report.
CHECKS: dict[str, Callable[[], Finding]] = {
    "python": check_python,
    "runtime": check_runtime,
    "java": check_java,
    "tensorflow": check_tensorflow,
    "horovod": check_horovod,
    "petastorm": check_petastorm,
    "delta": check_delta,
    "mlflow": check_mlflow,
}


def run_check(name: str) -> Finding:
    """Runs one check and turns whatever it raises into what was seen."""
    try:
        return CHECKS[name]()
    except RankFailedError as error:
        detail = error.summary  # the message continues with the rank's log
    except LakelensError as error:
        detail = " | ".join(line.strip() for line in str(error).splitlines() if line.strip())
        if isinstance(error.__cause__, ImportError):
            detail = f"{detail} ({_place(error.__cause__)})"
    except Exception as error:  # noqa: BLE001  the doctor reports every failure, whatever library it comes from
        first_line = (str(error).strip().splitlines() or [""])[0]
        detail = f"{type(error).__name__}: {first_line} ({_place(error)})"
    return Finding(installed(_PACKAGES.get(name, name)), ok=False, detail=detail)


def _place(error: Exception) -> str:
    """The file and line that raised an error."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def main(name: str) -> None:
    """Runs the check `name` and prints what it saw as one JSON line, after whatever the libraries print."""
    seen = run_check(name)
    sys.stdout.flush()
    print("\n" + json.dumps(asdict(seen)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
