"""Checks of driver and executors: the driver's address, equal versions, and Spark's reports of failures."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Any

from ....errors import ClusterConfigurationError, LaunchError, RankFailedError
from ....spark.workers import CANCELLED, difference, problem_in, reason_of

# From the sentence of `task_channel`.
_UNREACHABLE = re.compile(r"cannot reach (the driver|rank 0's task) at")
# From `leader` and `barrier_task`.
_MISSING = re.compile(r"never reported to (rank 0's task|the others) within")
_LAUNCH_ERROR = "lakelens.errors.LaunchError: "


def listening_address(master: str, conf: Mapping[str, str | None]) -> tuple[str, str]:
    """Chooses the driver's address to listen on, and the address for the tasks."""
    if master.startswith("local"):
        return "127.0.0.1", "127.0.0.1"
    host, bind = conf.get("spark.driver.host") or socket.gethostname(), conf.get("spark.driver.bindAddress")
    with contextlib.suppress(ValueError):  # a host name
        if bind and not ipaddress.ip_address(bind).is_unspecified:
            return bind, host
    return address_of(host, f"spark.driver.host={host!r}"), host


def address_of(host: str, what: str) -> str:
    """Returns the IP address of the driver's host, or of that of rank 0's task."""
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise ClusterConfigurationError(
            f"{what} has no IPv4 address ({error}); set it to one that the executors reach"
        ) from error
    if ipaddress.ip_address(address).is_unspecified:
        raise ClusterConfigurationError(
            f"{what} stands for all interfaces; set it to the one address that the executors reach"
        )
    return address


def check_executors(hellos: list[dict[str, Any]], *, needs_horovod: bool = True, version: str | None = None) -> None:
    """Checks that the executors run the same versions as the driver."""
    for hello in hellos:
        where = f"the executor on {hello['host']} (rank {hello['rank']})"
        found = difference(where, hello["python"], hello["version"], version)
        if found is not None:
            raise ClusterConfigurationError(found)
        if hello["problem"] and needs_horovod:
            raise ClusterConfigurationError(f"{where}: {hello['problem']}")


def explained(error: Exception, name: str) -> LaunchError:
    """Turns Spark's error into one that names the fix."""
    text = str(error)
    if "maxResultSize" in text:
        return LaunchError(
            f"{name}: rank 0's value is larger than spark.driver.maxResultSize allows; raise that setting, "
            f"or save the object and return its path"
        )
    problem = problem_in(text)
    if problem is not None:
        return ClusterConfigurationError(f"{name}: {problem}")
    if _UNREACHABLE.search(text):
        return ClusterConfigurationError(f"{name}: {reason_of(error).removeprefix(_LAUNCH_ERROR)}")
    if _MISSING.search(text):
        return LaunchError(f"{name}: {reason_of(error).removeprefix(_LAUNCH_ERROR)}; an executor or its host hangs")
    # A user's exception may also mention "cancelled"; a cancelled job is not restarted.
    cancelled = CANCELLED.search(text) is not None
    what = "was cancelled" if cancelled else "was ended by Spark"
    return RankFailedError(
        f"{name} {what} before every rank had returned; Spark says: {reason_of(error)}",
        reason="cancelled" if cancelled else "lost",
    )
