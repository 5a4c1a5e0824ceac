"""What every launcher needs: the job, a rank's place in it, and Horovod's environment variables for it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any

from ..processes.rank_process import RankSpec
from ..processes.rank_record import RankEvent
from .conversation import Controls, OnQuestion


@dataclass(frozen=True)
class RankPlacement:
    """A rank's place in the world, in Horovod's terms."""

    rank: int  # 0 to size - 1
    size: int  # Number of ranks
    local_rank: int  # Number among the ranks of the same host
    local_size: int  # Number of ranks on this host
    cross_rank: int  # Number of this host among those that have this local rank
    cross_size: int  # Number of hosts that have this local rank
    host: str  # Name of the host, equal for the ranks that share it


@dataclass(frozen=True)
class Terms:
    """The words of a caller's API for ranks, for messages; `{}` stands for their number."""

    ranks: str  # A number of ranks
    one_rank: str  # One rank
    every_slot: str  # A rank on every slot
    on_driver: str  # Ranks on the driver


RUNNER_TERMS = Terms("np={}", "np=-1 or np=1", "np=0", "np=-{}")
EXPERIMENT_TERMS = Terms("slots_per_trial={}", "slots_per_trial=1", "slots_per_trial=0", "strategy=horovod_local")


@dataclass(frozen=True)
class Job:
    """One start of a training function on a number of ranks."""

    name: str  # For logs, process titles and the Spark UI
    size: int  # Number of ranks
    payload: bytes = field(repr=False)  # The pickled function and its arguments
    stall_timeout_s: float  # Seconds after which a stopped or absent rank fails the job
    environment: Mapping[str, str] = field(default_factory=dict)  # Variables that the user sets for every rank
    preload: tuple[str, ...] = ()  # Modules that ranks import while the launcher waits
    attempt: int = 0  # 0 for the first start
    gpus: bool | None = None  # Whether each rank gets a GPU; None uses GPUs if there are any
    needs_horovod: bool = True  # Whether ranks communicate through Horovod
    terms: Terms = RUNNER_TERMS  # The caller's words for ranks, for messages
    key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)  # Secret of this start, hex

    def again(self) -> Job:
        """The same job for its next start, with its own secret."""
        return replace(self, attempt=self.attempt + 1, key=secrets.token_hex(32))


@dataclass(frozen=True)
class Listener:
    """The callbacks of a launcher's caller, and its messages to the ranks."""

    # Called with rank, stream and text of each line that a rank writes; None discards them
    on_line: Callable[[int, str, str], None] | None
    on_message: Callable[[str], None]  # Called with each message of a rank to the driver
    on_notice: Callable[[str], None]  # Called with notices of the launcher, such as what it waits for
    # Called with rank and body of each question that a rank asks, one after the other, in the thread that waits for the
    # job; gives the answer. Its exceptions end the job and are raised to the launcher's caller. While it runs no other
    # event is handled, so it should be quick. None answers with an empty object
    on_question: OnQuestion | None = None
    controls: Controls = field(default_factory=Controls)  # Messages to ranks while they run
    is_seen: bool = True  # Whether the user reads the lines at once
    on_ready: Callable[[], None] | None = None  # Called once every rank has its place and starts the function

    def wants(self, event: RankEvent) -> bool:
        """Returns whether an event should be shown to the user."""
        return event.kind == "message" or (event.kind == "line" and self.on_line is not None)

    def hear(self, event: RankEvent) -> None:
        """Passes on an event that should be shown to the user."""
        if event.kind == "message":
            self.on_message(event.data["text"])
        elif event.kind == "line" and self.on_line is not None:
            self.on_line(event.rank, event.data["stream"], event.data["text"])


def place(hosts: Sequence[str]) -> list[RankPlacement]:
    """Numbers the ranks within and across hosts."""
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    placements = []
    for rank, host in enumerate(hosts):
        local_rank = members[host].index(rank)
        across = [name for name, ranks in members.items() if len(ranks) > local_rank]
        placements.append(
            RankPlacement(rank, len(hosts), local_rank, len(members[host]), across.index(host), len(across), host)
        )
    return placements


def horovod_environment(placement: RankPlacement, interface: str, stall_timeout_s: float) -> dict[str, str]:
    """The variables that make a process one rank of a Horovod world; none for a single process."""
    if placement.size == 1:
        return {}
    return {
        "HOROVOD_RANK": str(placement.rank),
        "HOROVOD_SIZE": str(placement.size),
        "HOROVOD_LOCAL_RANK": str(placement.local_rank),
        "HOROVOD_LOCAL_SIZE": str(placement.local_size),
        "HOROVOD_CROSS_RANK": str(placement.cross_rank),
        "HOROVOD_CROSS_SIZE": str(placement.cross_size),
        "HOROVOD_HOSTNAME": placement.host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        "NCCL_SOCKET_IFNAME": interface,
        # The launcher's own timeout, with the better message, should expire first.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(int(stall_timeout_s) + 5),
    }


def rank_environment(job: Job, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a rank's process: the launcher's without another job's variables, defaults, and the user's."""
    inherited = {key: value for key, value in base.items() if not key.startswith("HOROVOD_") or key in _USERS_HOROVOD}
    return {**_DEFAULTS, **inherited, **job.environment}


def rank_spec(job: Job, rank: int, payload: IO[bytes], value: IO[bytes]) -> RankSpec:
    """How to start one rank of a job."""
    return RankSpec(
        rank=rank, payload=payload, value=value, environment=rank_environment(job), preload=job.preload, title=job.name
    )


# Groups that happen to be ready together are not fused: the content of a buffer decides the order of summation, and so
# the last bits.
_DEFAULTS = {"HOROVOD_DISABLE_GROUP_FUSION": "1"}
# Horovod's tuning variables may come from outside; a rank's place may not.
_USERS_HOROVOD = frozenset(
    {
        "HOROVOD_FUSION_THRESHOLD",
        "HOROVOD_DISABLE_GROUP_FUSION",
        "HOROVOD_CYCLE_TIME",
        "HOROVOD_CACHE_CAPACITY",
        "HOROVOD_LOG_LEVEL",
        "HOROVOD_TIMELINE",
        "HOROVOD_AUTOTUNE",
        "HOROVOD_AUTOTUNE_LOG",
        "HOROVOD_NUM_STREAMS",
        "HOROVOD_THREAD_AFFINITY",
    }
)


def assignment(job: Job, placement: RankPlacement, environment: Mapping[str, str]) -> dict[str, Any]:
    """The assignment of a rank to its place; without the job's secret, because it may be sent over the network."""
    return {**asdict(placement), "attempt": job.attempt, "name": job.name, "env": dict(environment)}
