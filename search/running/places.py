"""Where the trials of a search run, and the slots of a place, which the searches that run there share.

A trial gets all its slots at once or none, so that two trials cannot block each other with half of their slots.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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


DEFAULT_PRIORITY = 42
_pools: dict[str, SlotPool] = {}
_pools_lock = threading.Lock()


@dataclass
class SlotPool:
    """The slots of a place, by number. A free slot goes to the search of the first priority that holds the fewest."""

    shares: list[Share] = field(default_factory=list)  # The searches
    taken: set[int] = field(default_factory=set)  # The slots that trials hold
    lock: threading.Lock = field(default_factory=threading.Lock)  # Of both


class Share:
    """The slots of one search."""

    def __init__(self, pool: SlotPool, capacity: Callable[[], int], size: int, priority: int, most: int | None) -> None:
        self.pool, self.size, self.priority = pool, size, priority
        self.capacity, self.most = capacity, most
        self.held = 0  # Slots that its trials hold
        self.wants = False  # Whether a trial waits for slots

    def ask(self, wants: bool) -> None:
        """Notes whether a trial of the search waits for slots."""
        with self.pool.lock:
            self.wants = wants

    def take(self) -> tuple[int, ...] | None:
        """Takes the slots of one trial; None while they are not free, or another search has priority."""
        capacities = self._capacities()
        with self.pool.lock:
            free = capacities[self] - len(self.pool.taken)
            if free < self.size or not self.has_room(self.held) or self._first(self.held, capacities) is not self:
                return None
            numbers = (number for number in itertools.count() if number not in self.pool.taken)
            slots = tuple(itertools.islice(numbers, self.size))
            self.pool.taken.update(slots)
            self.held += self.size
            return slots

    def give_back(self, slots: tuple[int, ...]) -> None:
        """Gives slots back."""
        with self.pool.lock:
            self.pool.taken.difference_update(slots)
            self.held -= len(slots)

    def may_keep(self) -> bool:
        """Returns whether the slots of a trial that has ended go to this search again, rather than to another one."""
        capacities = self._capacities()
        with self.pool.lock:
            kept = self._first(self.held - self.size, capacities) is self
            return kept and len(self.pool.taken) <= capacities[self]

    def has_room(self, held: int) -> bool:
        """Returns whether its limit allows one more trial in addition to the held slots."""
        return self.most is None or held + self.size <= self.most

    def _capacities(self) -> dict[Share, int]:
        # Outside the lock: on executors this asks the JVM.
        return {share: share.capacity() for share in list(self.pool.shares)}

    def _first(self, held: int, capacities: Mapping[Share, int]) -> Share:
        """Finds which share is next: this one, if it held `held` slots, or another that waits for slots and fits."""
        shares = self.pool.shares

        def place(each: Share) -> tuple[int, int, int]:
            return each.priority, held if each is self else each.held, shares.index(each)

        others = [each for each in shares if each is not self and each.wants and each.has_room(each.held)]
        return min([self, *(each for each in others if each.size <= capacities.get(each, 0))], key=place)


@contextlib.contextmanager
def share_of(
    place: str, capacity: Callable[[], int], *, size: int, priority: int | None, most: int | None
) -> Iterator[Share]:
    """Joins the searches of a place."""
    with _pools_lock:
        pool = _pools.setdefault(place, SlotPool())
        share = Share(pool, capacity, size, priority or DEFAULT_PRIORITY, most)
        pool.shares.append(share)
    try:
        yield share
    finally:
        with _pools_lock:
            pool.shares.remove(share)
            if not pool.shares:
                del _pools[place]
