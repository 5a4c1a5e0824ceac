"""How many ranks a cluster can run at once, and who of us may use them."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import NotEnoughSlotsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.1
# Where no setting says how many executors there will be, those that are there are all of them once none has come for
# this long: they start their JVMs at the same time, and on a loaded machine they register seconds apart.
_SETTLED_S = 10.0
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,")


def slots_now(spark: SparkSession) -> int:
    """Counts the tasks that the registered executors can run at the same time; 0 while none has registered."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def executors_now(spark: SparkSession) -> int:
    """Counts the registered executors, without the driver."""
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def newest_executor_age_s(spark: SparkSession) -> float:
    """Tells how many seconds ago the newest executor registered; without any, the session's age."""
    context = spark.sparkContext._jsc.sc()
    executors = context.statusStore().executorList(True)
    added = [int(executors.apply(index).addTime().getTime()) for index in range(int(executors.size()))]
    return time.time() - max([int(context.startTime()), *added]) / 1000


def expected_executors(master: str, instances: str | None) -> int | None:
    """Tells from the settings how many executors there will be; None if they do not say.

    Args:
        master: The Spark master URL.
        instances: The value of spark.executor.instances.
    """
    if master.startswith("local-cluster"):
        match = _LOCAL_CLUSTER.match(master)
        return int(match.group(1)) if match else None
    if master.startswith("local"):
        return 0
    return int(instances) if instances and instances.isdigit() else None


def total_slots(spark: SparkSession, wait_s: float, enough: int | None = None, *, patient: bool = False) -> int:
    """Counts the cluster's slots once its executors have registered.

    Args:
        spark: The session.
        wait_s: How long to wait for executors to register.
        enough: Stop waiting as soon as there are this many.
        patient: Wait for `enough` also when every executor that is expected is there.

    Returns:
        The number of slots; 0 if no executor came within `wait_s`.
    """
    conf = spark.sparkContext.getConf()
    expected = expected_executors(spark.sparkContext.master, conf.get("spark.executor.instances"))
    started = time.monotonic()
    while True:
        slots = slots_now(spark)
        if enough is not None and slots >= enough:
            return slots
        if slots > 0 and not patient and _all_there(spark, expected):
            return slots
        if time.monotonic() - started >= wait_s:
            return slots
        time.sleep(_POLL_S)


def _all_there(spark: SparkSession, expected: int | None) -> bool:
    if expected is not None:
        return executors_now(spark) >= expected
    return newest_executor_age_s(spark) >= _SETTLED_S


class _Ledger:
    """Which of this process's runners hold slots of which Spark application."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.held: dict[str, list[tuple[str, int]]] = {}


_ledger = _Ledger()


@contextlib.contextmanager
def reserve(
    application: str, name: str, ranks: int, total: int, wait_s: float, notice: Callable[[str], None]
) -> Iterator[None]:
    """Holds `ranks` of an application's slots for one job; waits while other runners of this process hold them.

    Two barrier jobs that each got half of what they need would wait for one another for ever.

    Raises:
        NotEnoughSlotsError: If they do not come free within `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    said = False
    entry = (name, ranks)
    with _ledger.changed:
        while True:
            holders = _ledger.held.setdefault(application, [])
            free = total - sum(count for _, count in holders)
            if free >= ranks:
                holders.append(entry)
                break
            if not said:
                notice(f"{name} waits for {ranks} slots; {_held(holders)}, {free} of {total} are free")
                said = True
            if not _ledger.changed.wait(timeout=max(0.0, deadline - time.monotonic())):
                raise NotEnoughSlotsError(
                    f"{name} needs {ranks} slots; {_held(holders)} and {free} of {total} are free after {wait_s:g} s; "
                    f"wait longer (slots_wait_s), use fewer ranks, or end the other job"
                )
    try:
        yield
    finally:
        with _ledger.changed:
            _ledger.held[application].remove(entry)
            _ledger.changed.notify_all()


def _held(holders: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} holds {count}" for name, count in holders) or "no other runner holds any"
