"""`lakelens doctor`: tries every part that the main job needs and shows how to fix each that does not work.

Each part runs in a separate process, because an import may crash or hang it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import lakelens
from lakelens.errors import LakelensError, RankFailedError
from lakelens.freed_memory import why_not_kept
from lakelens.jobs.command import EXIT_DONE, EXIT_FAILED
from lakelens.locations import without_password
from lakelens.spark.jvm import SHORT_LIVED, find_java
from lakelens.tracking.runs import resolve_tracking_uri

DESCRIPTION = (
    "Try every part: Python, packages, Java, TensorFlow, Horovod, Petastorm, Delta through Spark, the MLflow store"
)
# Added to a failure whose own message does not name the way out.
_WAY_OUT = {
    "tensorflow": "pip install 'lakelens[training]'",
    "horovod": "python -m lakelens.horovod_build",
    "petastorm": "pip install 'lakelens[petastorm]'",
    "delta": "pip install 'lakelens[spark]'; Delta's JARs come from Maven at the first start, or lie in Spark's jars/",
    "mlflow": "pip install 'lakelens[training]', or set MLFLOW_TRACKING_URI to a store that answers",
}
# The packages of a runtime that are shown, and what Databricks sets on every cluster and its images hold.
_SHOWN = ("pyspark", "delta-spark", "tensorflow", "pyarrow", "numpy", "pandas")
_DATABRICKS = ("DATABRICKS_RUNTIME_VERSION", Path("/databricks/DBR_VERSION"))
# Extras whose packages machines have for other reasons too: a version that lakelens has no use for breaks nothing.
_NOT_COMPARED = ("dev", "java", "torch")
# A cluster runs its own Spark; one from PyPI would stand in its way.
_OF_THE_CLUSTER = ("pyspark", "delta-spark")


@dataclass(frozen=True)
class Finding:
    """What one check saw: one line of the doctor."""

    part: str  # Name of the part
    version: str | None  # The part's version; None when it could not be read
    ok: bool  # Whether the part does what the main job needs
    detail: str  # What was tried, or what went wrong and the way out
    seconds: float  # How long trying took

    def line(self) -> str:
        """Formats the finding for people."""
        return f"{self.part:<11} {self.version or '-':<10} {'ok    ' if self.ok else 'BROKEN'}  {self.detail}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the doctor."""
    parser.add_argument("--part", action="append", choices=tuple(CHECKS), help="only this part (repeatable)")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="seconds after which a part counts as hanging")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tries the parts one after the other and prints a line for each."""
    findings = []
    with tempfile.TemporaryDirectory(prefix="lakelens-doctor-") as folder:
        for part in CHECKS:
            if not args.part or part in args.part:
                findings.append(examine(part, Path(folder), args.timeout_s))
                print(findings[-1].line(), flush=True)
    ok = all(finding.ok for finding in findings)
    return {
        "ok": ok,
        "lakelens": lakelens.__version__,
        "parts": [asdict(finding) for finding in findings],
        "exit_code": EXIT_DONE if ok else EXIT_FAILED,
    }


def examine(part: str, folder: Path, timeout_s: float) -> Finding:
    """Tries one part in a separate process, which may crash or hang, and ends everything that it started."""
    started = time.monotonic()
    # A clone that is not installed is found where this process found it, after everything else.
    root = str(Path(lakelens.__file__).resolve().parent.parent)
    found_file, log, hung, code = folder / f"{part}.json", folder / f"{part}.log", False, 0
    script = f"import sys; sys.path.append({root!r}); from lakelens.jobs import doctor; doctor.answer({part!r})"
    # What an ended JVM leaves behind goes with the doctor's own folder.
    scratch = {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
    environment = os.environ | scratch | {"TF_CPP_MIN_LOG_LEVEL": "3", "MLFLOW_DISABLE_TELEMETRY": "true"}
    if environment.get("MLFLOW_TRACKING_URI"):  # relative to where the user is; the check runs elsewhere
        environment["MLFLOW_TRACKING_URI"] = resolve_tracking_uri(environment["MLFLOW_TRACKING_URI"])
    with log.open("wb") as output:
        command = [sys.executable, "-c", script]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            hung = True
        finally:
            _end(process)
    if found_file.exists():
        found = json.loads(found_file.read_text(encoding="utf-8"))
    elif hung:
        found = {"ok": False, "detail": f"no answer within {timeout_s:.0f} s (busy? see --timeout-s)"}
    else:
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        said = " | ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:])
        found = {"ok": False, "detail": f"the check ended with {ended}: {said}"}
    if not found["ok"] and _WAY_OUT.get(part, "") not in found["detail"]:
        found["detail"] += f" -> {_WAY_OUT[part]}"
    return Finding(part, found.get("version"), found["ok"], found["detail"], round(time.monotonic() - started, 1))


def answer(part: str) -> None:
    """Runs one check and writes what it saw into the working directory."""
    found = json.dumps(check(part))
    Path(f"{part}.json").write_text(found, encoding="utf-8")


def check(part: str) -> dict[str, Any]:
    """Runs one check, and turns whatever it raises into what was seen."""
    try:
        return {"version": _version(part), "ok": True, "detail": CHECKS[part]()}
    except RankFailedError as error:
        detail = error.summary  # the message continues with the rank's log
    except LakelensError as error:
        detail = " | ".join(line.strip() for line in str(error).splitlines() if line.strip())
        if isinstance(error.__cause__, ImportError):
            detail = f"{detail} ({_place(error.__cause__)})"
    except Exception as error:  # noqa: BLE001  the doctor reports every failure, whatever library it comes from
        first_line = (str(error).strip().splitlines() or [""])[0]
        detail = f"{type(error).__name__}: {first_line} ({_place(error)})"
    return {"version": _version(part), "ok": False, "detail": detail}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a check with all that it started, such as Spark's JVM."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _place(error: Exception) -> str:
    """The file and line that raised an error."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _version(part: str) -> str | None:
    if part == "python":
        return platform.python_version()
    if part == "java":
        with contextlib.suppress(LakelensError):
            return find_java().version
    return lakelens.__version__ if part == "runtime" else installed({"delta": "delta-spark"}.get(part, part))


def _python() -> str:
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        raise LakelensError("lakelens runs on Python 3.10 to 3.13; use one of them")
    reason = why_not_kept()
    return sys.executable if reason is None else f"{sys.executable}; freed memory goes back to the kernel: {reason}"


def _runtime() -> str:
    """Names the runtime, and compares its packages with what the installed lakelens asks for."""
    databricks = databricks_runtime()
    name = f"Databricks Runtime {databricks}" if databricks else "no Databricks runtime"
    detail = ", ".join([name, *(f"{package} {found}" for package in _SHOWN if (found := installed(package)))])
    try:
        declared = [Requirement(text) for text in requires("lakelens") or []]
    except PackageNotFoundError:
        return f"{detail}; lakelens is not installed, so nothing is compared"
    unmet = unmet_requirements(declared, "databricks" if databricks else "")
    if unmet:
        wrong = ", ".join(f"{one.name} {installed(one.name) or 'is missing'}" for one in unmet)
        way = way_out(unmet, databricks=bool(databricks))
        raise LakelensError(f"{detail}; missing, too old or too new: {wrong} -> {way}")
    return detail


def _java() -> str:
    java = find_java()
    return f"{java.home} (from {java.origin})"


def _tensorflow() -> str:
    """Multiplies two matrices and counts the GPUs that TensorFlow sees."""
    import keras
    import tensorflow as tf

    product = float(tf.reduce_sum(tf.matmul(tf.ones((4, 4)), tf.ones((4, 4)))))
    _require_equal("a 4 x 4 product of ones", product, 64.0)
    gpus = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    names = ", ".join(str(details.get("device_name", "GPU")) for details in gpus) or "no GPU, so CPU"
    return f"Keras {keras.__version__}; {names}"


def _horovod() -> str:
    """Sums one number over two real ranks."""
    from lakelens.horovod_build import problem
    from lakelens.training.runner.runner import KERAS_MODULES, HorovodRunner

    wrong = problem()
    if wrong is not None:
        raise LakelensError(wrong)
    runner = HorovodRunner(np=-2, use_gpu=False, driver_log_verbosity="log_callback_only", preload=KERAS_MODULES)
    _require_equal("the sum of 1 and 2 over two ranks", runner.run(_sum_over_ranks), 3.0)
    return "two ranks, one allreduce through Gloo"


def _sum_over_ranks() -> float:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    return float(hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum))


def _petastorm() -> str:
    """Reads a Delta table through the adapters: Petastorm's own reader needs pyarrow 14 or older, these do not."""
    import pyarrow
    from deltalake import write_deltalake

    from lakelens.training.feed.feed import DeltaFeed

    numbers = list(range(100))
    write_deltalake("petastorm", pyarrow.table({"id": numbers, "image": [bytes([number]) for number in numbers]}))
    with DeltaFeed("petastorm", label_column="id").petastorm_reader(["id"], num_epochs=1) as reader:
        read = sorted(int(number) for batch in reader for number in batch.id)
    _require_equal("the column that was written", read, numbers)
    return f"pyarrow {pyarrow.__version__}; {len(read)} rows of a table read"


def _delta() -> str:
    """Writes two versions of a Delta table through Spark and reads version 0 back."""
    from lakelens.spark.port import set_log_level
    from lakelens.spark.session import spark_session

    conf = {"spark.driver.extraJavaOptions": SHORT_LIVED, "spark.ui.enabled": "false"}
    spark = spark_session("local[1]", app_name="lakelens-doctor", conf=conf)
    set_log_level(spark, "OFF")
    table = str(Path("delta").absolute())
    spark.range(3).write.format("delta").save(table)
    spark.range(5).write.format("delta").mode("overwrite").save(table)
    rows = spark.read.format("delta").option("versionAsOf", 0).load(table).count()
    spark_version = spark.version
    spark.stop()
    _require_equal("the rows of version 0", rows, 3)
    return f"Spark {spark_version}; two versions written, version 0 read"


def _mlflow() -> str:
    """Asks the MLflow store that is configured; without one, keeps a run in a temporary store."""
    import mlflow

    configured = os.environ.get("MLFLOW_TRACKING_URI")
    if configured:
        mlflow.MlflowClient(tracking_uri=configured).search_experiments(max_results=1)
        return f"the store at MLFLOW_TRACKING_URI={without_password(configured)} answers"
    folder = Path("store").absolute()
    folder.mkdir()
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    run = client.create_run(client.create_experiment("doctor", artifact_location=f"file://{folder}/artifacts"))
    client.log_metric(run.info.run_id, "metric", 0.5)
    _require_equal("the metric of a run", client.get_run(run.info.run_id).data.metrics.get("metric"), 0.5)
    return "MLFLOW_TRACKING_URI is not set; a run kept in sqlite and read"


# In the order of the report.
CHECKS: dict[str, Callable[[], str]] = {
    "python": _python,
    "runtime": _runtime,
    "java": _java,
    "tensorflow": _tensorflow,
    "horovod": _horovod,
    "petastorm": _petastorm,
    "delta": _delta,
    "mlflow": _mlflow,
}


def _require_equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise LakelensError(f"{what} is {found}, not {expected}")


def way_out(unmet: list[Requirement], *, databricks: bool) -> str:
    """Writes the line that installs what is missing; a Databricks cluster's Spark changes with its runtime alone."""
    kept = _OF_THE_CLUSTER if databricks else ()
    line = " ".join(f"'{one.name}{one.specifier}'" for one in unmet if one.name not in kept)
    steps = [f"pip install {line}"] if line else []
    if any(one.name in kept for one in unmet):
        steps.append("choose a runtime of docs/databricks.md's table for its Spark")
    return "; ".join(steps)


def databricks_runtime(environ: Mapping[str, str] = os.environ, file: Path = _DATABRICKS[1]) -> str | None:
    """Reads the version of the Databricks runtime, such as `16.4`; None elsewhere."""
    try:
        return environ.get(_DATABRICKS[0]) or file.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def unmet_requirements(declared: list[Requirement], extra: str) -> list[Requirement]:
    """Finds the requirements that the installed packages do not meet, each once, in the order of `declared`."""
    unmet = {}
    for one in declared:
        needed = one.marker is None or one.marker.evaluate({"extra": extra})
        if not needed and any(one.marker.evaluate({"extra": name}) for name in _NOT_COMPARED if one.marker):
            continue
        found = installed(one.name)
        if (found is None and needed) or (found is not None and not one.specifier.contains(found, prereleases=True)):
            unmet[one.name] = one
    return list(unmet.values())


def installed(package: str) -> str | None:
    """Reads the version of an installed package; Databricks has MLflow's under a second name, others TensorFlow's."""
    for name in (package, f"{package}-skinny", f"{package}-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return None
