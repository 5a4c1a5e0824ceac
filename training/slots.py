"""How many ranks a cluster can run at once, and who of us may use them."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import NotEnoughSlotsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.1
# Where no setting says how many executors there will be, those that are there are all of them once none has come for
# this long: they start their JVMs at the same time, and on a loaded machine they register seconds apart.
_SETTLED_S = 10.0
# The same where the settings say that more are to come: on a loaded machine the last was more than ten seconds behind.
_MISSING_S = 30.0
# What YARN and Kubernetes start when spark.executor.instances is not set.
_SPARKS_INSTANCES = 2
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*]")
_SIZE = re.compile(r"(\d+)([mgt]?)b?")
_SETTINGS = ("spark.executor.instances", "spark.executor.cores", "spark.executor.memory", "spark.cores.max")


def slots_now(spark: SparkSession) -> int:
    """Counts the tasks that the registered executors can run at the same time; 0 while none has registered."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def registered_now(spark: SparkSession) -> Registered:
    """Looks at the registered executors, without the driver."""
    context = spark.sparkContext._jsc.sc()
    executors = context.statusStore().executorList(True)
    found = [executors.apply(index) for index in range(int(executors.size()))]
    added = [int(context.startTime()), *(int(one.addTime().getTime()) for one in found)]
    workers = [one for one in found if one.id() != "driver"]
    return Registered(len(workers), sum(int(one.totalCores()) for one in workers), time.time() - max(added) / 1000)


@dataclass(frozen=True)
class Registered:
    """The executors that are there.

    Attributes:
        executors: How many.
        cores: How many cores they have together.
        newest_age_s: Seconds since the newest registered; without any, the session's age.
    """

    executors: int
    cores: int
    newest_age_s: float


@dataclass(frozen=True)
class Expected:
    """What the settings say of the executors that there will be.

    Attributes:
        executors: How many; None if that does not follow.
        cores: How many cores they will have together at most; None if that does not follow.
    """

    executors: int | None = None
    cores: int | None = None

    def all_there(self, registered: Registered) -> bool:
        """Tells whether waiting longer would bring no more slots."""
        if self.executors is not None:
            return registered.executors >= self.executors
        if self.cores is not None and registered.cores >= self.cores:
            return True
        return registered.newest_age_s >= (_SETTLED_S if self.cores is None else _MISSING_S)


def expected(master: str, conf: Mapping[str, str | None]) -> Expected:
    """Tells from the settings which executors there will be.

    Args:
        master: The Spark master URL.
        conf: The settings that Spark reads for it: `spark.executor.instances`, `spark.executor.cores`,
            `spark.executor.memory` and `spark.cores.max`.
    """
    local = _LOCAL_CLUSTER.match(master)
    if local is not None:
        workers, cores, megabytes = (int(number) for number in local.groups())
        return Expected(cores=_granted(workers, cores, megabytes, conf))
    if master.startswith("local"):
        return Expected(executors=0)
    if master.startswith("spark:"):
        # The master knows nothing of spark.executor.instances: it starts what its workers have room for.
        most = _whole(conf.get("spark.cores.max"))
        return Expected(cores=None if most is None else _multiple(most, _whole(conf.get("spark.executor.cores"))))
    instances = conf.get("spark.executor.instances")
    return Expected(executors=_SPARKS_INSTANCES if instances is None else _whole(instances))


def _granted(workers: int, cores: int, megabytes: int, conf: Mapping[str, str | None]) -> int:
    """The cores that Spark's own master gives an application on workers that are all its own."""
    each = _whole(conf.get("spark.executor.cores"))
    most = _whole(conf.get("spark.cores.max"))
    if each is not None:
        memory = _megabytes(conf.get("spark.executor.memory") or "1g")
        cores = min(cores // each, megabytes // memory if memory else cores) * each
    return _multiple(workers * cores if most is None else min(workers * cores, most), each)


def _multiple(number: int, of: int | None) -> int:
    return number if not of else number // of * of


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _megabytes(text: str) -> int:
    """Reads a size as Spark writes it: `512m`, `1g`, a plain number of megabytes; 0 if it is none."""
    match = _SIZE.fullmatch(text.strip().lower())
    return 0 if match is None else int(match.group(1)) * {"t": 1 << 20, "g": 1024, "": 1, "m": 1}[match.group(2)]


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
    coming = expected(spark.sparkContext.master, {key: conf.get(key) for key in _SETTINGS})
    started = time.monotonic()
    while True:
        slots = slots_now(spark)
        if enough is not None and slots >= enough:
            return slots
        if slots > 0 and not patient and coming.all_there(registered_now(spark)):
            return slots
        if time.monotonic() - started >= wait_s:
            return slots
        time.sleep(_POLL_S)


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
