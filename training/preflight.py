"""What can be known before a job starts is said before it starts."""

from __future__ import annotations

import importlib.util
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ClusterConfigurationError, MissingDependencyError, NotEnoughSlotsError, SessionError
from .slots import total_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .launch import Job

INSTALL_HOROVOD = (
    "HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 "
    "HOROVOD_WITHOUT_MPI=1 "
    "pip install --no-build-isolation --no-cache-dir 'cmake<4' horovod==0.28.1"
)


def check_horovod() -> None:
    """Checks, without importing it, that Horovod is there and was built for the installed TensorFlow.

    Raises:
        MissingDependencyError: If not; gives the line that installs it.
    """
    problem = horovod_problem()
    if problem is not None:
        raise MissingDependencyError(problem)


def horovod_problem() -> str | None:
    """Says what is wrong with the installed Horovod; None if nothing is."""
    spec = importlib.util.find_spec("horovod")
    if spec is None or spec.origin is None:
        return (
            f"Horovod is missing, which more than one rank needs (one rank does not); install it:\n  {INSTALL_HOROVOD}"
        )
    folder = Path(spec.origin).parent
    if not list((folder / "tensorflow").glob("mpi_lib*.so")):
        return f"Horovod was built without TensorFlow; build it again:\n  pip uninstall -y horovod; {INSTALL_HOROVOD}"
    built_for = _built_for(folder)
    try:
        installed = version("tensorflow")
    except PackageNotFoundError:
        try:
            installed = version("tensorflow-cpu")
        except PackageNotFoundError:
            return "TensorFlow is missing, which Horovod ranks need; pip install 'lakelens[training]'"
    if built_for is not None and built_for.split(".")[:2] != installed.split(".")[:2]:
        return (
            f"Horovod was built for TensorFlow {built_for} and TensorFlow {installed} is installed; build it again:\n"
            f"  pip uninstall -y horovod; {INSTALL_HOROVOD}"
        )
    return None


def _built_for(folder: Path) -> str | None:
    """Reads which TensorFlow Horovod's build recorded; None if it did not."""
    try:
        recorded = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    value = recorded.get("tensorflow")
    return value if isinstance(value, str) else None


def check_cluster(spark: SparkSession, job: Job, slots_wait_s: float) -> int:
    """Checks that a session can run a barrier job, and gives the number of its slots.

    Raises:
        SessionError: If it is a Spark Connect session.
        ClusterConfigurationError: If dynamic allocation is on, or GPUs are wanted and not configured.
        NotEnoughSlotsError: If there are fewer slots than ranks.
    """
    require_classic(spark)
    conf = spark.sparkContext.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        raise ClusterConfigurationError(
            "spark.dynamicAllocation.enabled=true: Spark runs no barrier stage while it adds and removes executors; "
            "set it to false and fix the number with spark.executor.instances"
        )
    if job.gpus and not conf.get("spark.task.resource.gpu.amount", ""):
        raise ClusterConfigurationError(
            "use_gpu=True, but spark.task.resource.gpu.amount is not set, so Spark gives tasks no GPU; set "
            "spark.executor.resource.gpu.amount, spark.task.resource.gpu.amount=1 and "
            "spark.executor.resource.gpu.discoveryScript, "
            "or pass use_gpu=False"
        )
    # Before a restart a lost executor may be on its way back; before the first start the cluster is what it is.
    slots = total_slots(spark, slots_wait_s, enough=job.size, patient=job.attempt > 0)
    if slots < job.size:
        raise NotEnoughSlotsError(
            f"np={job.size} ranks need {job.size} slots and the cluster has {slots} (one for each task that "
            f"runs at the same time: "
            f"executors x spark.executor.cores / spark.task.cpus); use np={slots} or fewer, np=0 for all, "
            f"np=-{job.size} for "
            f"processes on the driver, or a larger cluster"
        )
    return max(slots, total_slots(spark, 0.0))


def require_classic(spark: SparkSession) -> None:
    """Checks that a session has a driver of its own.

    Raises:
        SessionError: If it is a Spark Connect session.
    """
    if "connect" in type(spark).__module__.split("."):
        raise SessionError(
            "this is a Spark Connect session, in which no barrier job can be followed from here; run on the "
            "cluster's driver "
            "(spark-submit, a notebook on a dedicated cluster), or use np=-1, -2, ... for processes on this machine"
        )
