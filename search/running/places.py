"""Where the trials of a search run: on this machine, or on the executors of a Spark application."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import NotEnoughSlotsError
from ...spark.port import application_of
from ...training.experiment.experiment_plan import ExperimentPlan
from ...training.runner.placement.gpus import list_driver_gpus
from ...training.runner.spark.preflight import require_classic
from ...training.runner.spark.slots import slots_now, total_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Place:
    """Where trials run."""

    name: str  # Equal for searches that share slots
    described: str  # Its description in messages
    capacity: Callable[[], int]  # Counts its slots
    environment: Callable[[tuple[int, ...]], Mapping[str, str]]  # Gives the variables of the ranks on given slots
    spark: SparkSession | None  # The session; None on this machine

    @classmethod
    def of(cls, plan: ExperimentPlan, spark: SparkSession | None) -> Place:
        """Finds the place of a search."""
        place = _driver(plan) if plan.ranks < 0 else _executors(plan, spark)
        there = place.capacity()
        if there < plan.slots_per_trial:
            raise NotEnoughSlotsError(
                f"a trial takes {plan.slots_per_trial} slots (resources.slots_per_trial) and {place.described}"
            )
        return place


def _driver(plan: ExperimentPlan) -> Place:
    """A slot of this machine is a GPU, or a core where there is none."""
    resources = plan.config.resources
    gpus = [] if resources.use_gpu is False else list_driver_gpus()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slots = len(gpus) or max(cores, plan.slots_per_trial)
    used = min(slots, resources.max_slots or slots)
    # By default TensorFlow uses all cores in each process; a constant number gives the same sums at every start.
    threads = str(max(1, cores // max(1, used)))

    def environment(taken: tuple[int, ...]) -> dict[str, str]:
        if gpus:
            return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[slot] for slot in taken)}
        return {} if "TF_NUM_INTRAOP_THREADS" in os.environ else {"TF_NUM_INTRAOP_THREADS": threads}

    what = "GPUs" if gpus else "cores"
    return Place(f"driver's {what}", f"this machine has {slots} slots ({what})", lambda: slots, environment, None)


def _executors(plan: ExperimentPlan, spark: SparkSession | None) -> Place:
    from ...spark.session import running_session, spark_session

    session = spark or running_session() or spark_session()
    require_classic(session, "a search")
    slots = total_slots(session, plan.config.resources.slots_wait_s)
    application = application_of(session)
    return Place(
        application,
        f"Spark application {application} has {slots} slots",
        lambda: slots_now(session),
        lambda _: {},
        session,
    )
