"""Counts the slots of a cluster, and shares them among this process' runners."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....errors import NotEnoughSlotsError
from ....spark.port import is_connect, java_context, master_of, setting_of, slots_of_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.1
# Interval of asking the JVM for new slots.
_RECOUNT_S = 0.5
# A session that starts or waits for slots reports nothing before this time.
_SAY_AFTER_S = 5.0
# np=0 takes all slots once no executor has come or gone for this long: executors start their JVMs at the same time, and
# on a loaded machine they register seconds apart.
_SETTLED_S = 10.0
# The same if the settings promise more executors: on a loaded machine the last one was more than ten seconds behind.
_MISSING_S = 30.0
_MOST_LOST = 3
_MOST_REASON_CHARACTERS = 100
# Default of YARN and Kubernetes if spark.executor.instances is not set.
_SPARKS_INSTANCES = 2
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*]")
_SETTINGS = ("spark.executor.instances", "spark.executor.cores", "spark.cores.max")


def slots_now(spark: SparkSession) -> int:
    """Counts the tasks that the registered executors can run at the same time; 0 while none has registered."""
    if is_connect(spark):
        return slots_of_server(spark)
    context = java_context(spark)
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def registered_now(spark: SparkSession) -> Registered:
    """Lists the registered executors, without the driver."""
    context = java_context(spark)
    listed = context.statusStore().executorList(False)
    found = [listed.apply(index) for index in range(int(listed.size()))]
    workers = [one for one in found if one.id() != "driver"]
    backend = context.schedulerBackend()
    # An executor whose connection has ended stays listed until Spark knows why, five seconds by default, without tasks.
    active = [one for one in workers if one.isActive() and backend.isExecutorActive(one.id())]
    there = {one.id() for one in active}
    left = [one for one in workers if one.id() not in there]
    now = time.time()
    changed = [int(context.startTime()) / 1000, *(one.addTime().getTime() / 1000 for one in found)]
    changed += [_left_at(one, now) for one in left]
    return Registered(
        len(active),
        sum(int(one.totalCores()) for one in active),
        now - max(changed),
        tuple(_described(one, now) for one in sorted(left, key=lambda one: -_left_at(one, now))[:_MOST_LOST]),
    )


def _left_at(executor: Any, now: float) -> float:
    removed = executor.removeTime()
    return removed.get().getTime() / 1000 if removed.isDefined() else now


def _described(executor: Any, now: float) -> str:
    reason = executor.removeReason()
    why = (
        " ".join(str(reason.get()).split())[:_MOST_REASON_CHARACTERS] if reason.isDefined() else "its connection ended"
    )
    ago = now - _left_at(executor, now)
    return f"executor {executor.id()} on {executor.hostPort()} was lost {ago:.0f} s ago ({why})"


@dataclass(frozen=True)
class Registered:
    """The registered executors."""

    executors: int  # Number of executors
    cores: int  # Their cores in all
    quiet_s: float  # Seconds since one was added or lost, or since the session started
    lost: tuple[str, ...] = ()  # Descriptions of those lost last, the latest first


@dataclass(frozen=True)
class Expected:
    """The executors expected from the settings."""

    executors: int | None = None  # Number of executors; None if unknown
    cores: int | None = None  # Most cores in all; None if unknown

    def all_there(self, registered: Registered, wait_s: float = 0.0) -> bool:
        """Returns whether waiting longer would bring no more slots."""
        if self.executors is not None:
            return registered.executors >= self.executors
        if self.cores is not None and registered.cores >= self.cores:
            return True
        return registered.quiet_s >= max(wait_s, _SETTLED_S if self.cores is None else _MISSING_S)


def expected(master: str, conf: Mapping[str, str | None]) -> Expected:
    """Derives the expected executors from the settings."""
    local = _LOCAL_CLUSTER.match(master)
    if master.startswith("local") and local is None:
        return Expected(executors=0)
    if local is not None or master.startswith("spark:"):
        # The master ignores spark.executor.instances: it starts what fits on its workers.
        most, each = _whole(conf.get("spark.cores.max")), _whole(conf.get("spark.executor.cores"))
        if local is not None:
            on_workers = int(local.group(1)) * _multiple(int(local.group(2)), each)
            most = on_workers if most is None else min(on_workers, most)
        return Expected(cores=None if most is None else _multiple(most, each))
    instances = conf.get("spark.executor.instances")
    return Expected(executors=_SPARKS_INSTANCES if instances is None else _whole(instances))


def _multiple(number: int, of: int | None) -> int:
    return number if not of else number // of * of


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def total_slots(
    spark: SparkSession, wait_s: float, enough: int | None = None, notice: Callable[[str], None] | None = None
) -> int:
    """Counts the cluster's slots once its executors have registered."""
    coming = expected(master_of(spark), {key: setting_of(spark, key) for key in _SETTINGS})
    is_listed = coming.executors != 0 and not is_connect(spark)
    started = time.monotonic()
    notified = False
    while True:
        # In this order, slots of an executor that registers in between are counted.
        there = registered_now(spark) if is_listed else None
        slots = slots_now(spark)
        if enough is not None and slots >= enough:
            return slots
        if there is None:  # a Connect server does not list its executors
            none_to_come = coming.executors == 0 or enough is None
        else:
            none_to_come = coming.all_there(there, 0.0 if enough is None else wait_s)
        waited = time.monotonic() - started
        if (slots > 0 and none_to_come) or waited >= wait_s:
            return slots
        if notice is not None and not notified and (waited >= _SAY_AFTER_S or (there is not None and there.lost)):
            notice(f"waits for {enough or 'the'} slots; {shortage(spark)}")
            notified = True
        time.sleep(_POLL_S)


def shortage(spark: SparkSession) -> str:
    """Describes how many slots the cluster has, and which executors it has lost."""
    lost = () if is_connect(spark) or expected(master_of(spark), {}).executors == 0 else registered_now(spark).lost
    return "; ".join([f"the cluster has {slots_now(spark)}", *lost])


# The slots that this process' runners hold, by Spark application: names of jobs and numbers of ranks.
_holders: dict[str, list[tuple[str, int]]] = {}
_changed = threading.Condition()


@contextlib.contextmanager
def reserve(
    application: str, name: str, ranks: int, total: Callable[[], int], wait_s: float, notice: Callable[[str], None]
) -> Iterator[None]:
    """Holds `ranks` of an application's slots for one job; waits while other runners of this process hold them.

    Two barrier jobs with half of their slots each would block each other forever.
    """
    deadline = time.monotonic() + wait_s
    notified = False
    entry = (name, ranks)
    with _changed:
        while True:
            holders = _holders.setdefault(application, [])
            slots = total()
            free = slots - sum(count for _, count in holders)
            if free >= ranks:
                holders.append(entry)
                break
            if not notified:
                notice(f"{name} waits for {ranks} slots; {_held(holders)}, {free} of {slots} are free")
                notified = True
            left_s = deadline - time.monotonic()
            _changed.wait(timeout=max(0.0, min(left_s, _RECOUNT_S)))
            if left_s <= 0.0:
                raise NotEnoughSlotsError(
                    f"{name} needs {ranks} slots; {_held(holders)} and {free} of {slots} are free after {wait_s:g} s; "
                    f"wait longer (slots_wait_s), use fewer ranks, or end the other job"
                )
    try:
        yield
    finally:
        with _changed:
            _holders[application].remove(entry)
            _changed.notify_all()


def _held(holders: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} holds {count}" for name, count in holders) or "no other runner holds any"
