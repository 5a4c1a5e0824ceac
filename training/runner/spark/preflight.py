"""Checks before a job starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....errors import ClusterConfigurationError, MissingDependencyError, NotEnoughSlotsError, SessionError
from ....horovod_build import problem
from ....spark.port import is_connect, is_local, setting_of
from .slots import shortage, total_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..placement.job import Job, Terms

# With these, a Connect server's cores are not its slots; and the values with which they are.
_NOT_CORES = {"spark.task.resource.gpu.amount": None, "spark.task.cpus": "1", "spark.default.parallelism": None}
_CONNECT = "pyspark.sql.connect.session"


def check_horovod(terms: Terms) -> None:
    """Checks, without importing it, that Horovod is installed and built for the installed TensorFlow."""
    found = problem()
    if found is not None:
        raise MissingDependencyError(f"{found}. More than one rank needs it; one rank ({terms.one_rank}) does not.")


def check_cluster(spark: SparkSession, job: Job, slots_wait_s: float, notice: Callable[[str], None]) -> None:
    """Checks that a session can run a barrier job, and waits for starting executors."""
    check_settings(spark, use_gpu=job.gpus)
    if job.size > 1 and job.needs_horovod and is_local(spark):
        # Other machines have their own environments, and each executor reports missing packages before its rank starts.
        check_horovod(job.terms)
    slots = total_slots(spark, slots_wait_s, job.size, lambda said: notice(f"{job.name} {said}"))
    terms = job.terms
    if slots < job.size:
        raise NotEnoughSlotsError(
            f"{terms.ranks.format(job.size)}: the ranks need {job.size} slots and {shortage(spark)} (a slot for each "
            f"task that runs at the same time: executors x spark.executor.cores / spark.task.cpus); use "
            f"{terms.ranks.format(slots)} or fewer, {terms.every_slot} for all, {terms.on_driver.format(job.size)} for "
            f"processes on the driver, or a larger cluster"
        )


def check_settings(spark: SparkSession, *, use_gpu: bool | None) -> None:
    """Checks that Spark's settings allow a barrier job."""
    if (setting_of(spark, "spark.dynamicAllocation.enabled") or "").lower() == "true":
        raise ClusterConfigurationError(
            "spark.dynamicAllocation.enabled=true: Spark runs no barrier stage while it adds and removes executors; "
            "set it to false and fix the number with spark.executor.instances"
        )
    if use_gpu and not setting_of(spark, "spark.task.resource.gpu.amount"):
        raise ClusterConfigurationError(
            "use_gpu is True, but spark.task.resource.gpu.amount is not set, so Spark gives tasks no GPU; set "
            "spark.executor.resource.gpu.amount, spark.task.resource.gpu.amount=1 and "
            "spark.executor.resource.gpu.discoveryScript, "
            "or set use_gpu to False"
        )


def require_count(spark: SparkSession, terms: Terms) -> None:
    """Checks that a session knows how many slots its cluster has."""
    for key, default in _NOT_CORES.items() if is_connect(spark) else ():
        value = setting_of(spark, key)
        if value not in (None, default):
            raise ClusterConfigurationError(
                f"{terms.every_slot} takes every slot of the cluster, and a Spark Connect server with {key}={value} "
                f"does not report their number; give the number ({terms.ranks.format('N')})"
            )


def require_progress(spark: Any, terms: Terms) -> None:
    """Checks that a session's client learns from Spark that tasks run."""
    if is_connect(spark) and not hasattr(spark, "registerProgressHandler"):
        raise SessionError(
            "ranks on executors need PySpark 4.0 or later on a Spark Connect session; upgrade the client, run on the "
            f"cluster's driver, or use {terms.on_driver.format('N')} for processes on this machine"
        )


def require_classic(spark: Any, what: str) -> None:
    """Checks that a session has its own driver."""
    if is_connect(spark):
        raise SessionError(
            f"this is a Spark Connect session, whose client cannot talk to ranks on executors, as {what} does; run it "
            "on the cluster's driver (spark-submit, a notebook on a dedicated cluster), or with processes on this "
            "machine"
        )


def active_connect_session() -> Any:
    """Returns this thread's Spark Connect session; None if there is none."""
    module = sys.modules.get(_CONNECT)
    return None if module is None else module.SparkSession.getActiveSession()
