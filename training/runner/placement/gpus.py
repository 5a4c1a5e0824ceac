"""Which GPU a rank uses. Pure except for `list_driver_gpus`, which asks the machine.

Every rank of a host sees the GPUs of all ranks of that host in the order of their local ranks, so that the usual
`gpus[hvd.local_rank()]` selects the rank's own; `hvd.init()` makes only that one visible to TensorFlow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....errors import ClusterConfigurationError

if TYPE_CHECKING:
    from .job import RankPlacement

_QUERY_TIMEOUT_S = 10.0


def through_index_map(addresses: Sequence[str], visible: str | None) -> list[str]:
    """Reads addresses as indexes into an existing CUDA_VISIBLE_DEVICES, as CUDA itself numbers them."""
    if visible is None:
        return list(addresses)
    devices = [device.strip() for device in visible.split(",") if device.strip()]
    chosen = []
    for address in addresses:
        if not address.isdigit() or int(address) >= len(devices):
            raise ClusterConfigurationError(
                f"GPU address {address!r} is not an index into CUDA_VISIBLE_DEVICES={visible!r}; unset the variable "
                f"or list every GPU"
            )
        chosen.append(devices[int(address)])
    return chosen


def visible_to_task(gpus: Sequence[str], visible: str | None) -> dict[str, str]:
    """The variables that show a Spark task the GPUs that Spark gave it; empty if it gave none."""
    if not gpus:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(through_index_map(gpus, visible)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def list_driver_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Lists the GPUs of this machine that this process may use; empty if there is none."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip() and device.strip() != "-1"]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run(
            [program, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip().isdigit()]


def driver_gpus(ranks: int, *, wanted: bool | None, available: Sequence[str]) -> list[str]:
    """Assigns the driver's GPUs to local ranks, one each, by local rank; empty for CPU."""
    if wanted is False:
        return []
    if not available and not wanted:
        return []
    if len(available) < ranks:
        raise ClusterConfigurationError(
            f"{ranks} ranks need {ranks} GPUs on the driver and it has {len(available)}; "
            f"start at most {max(len(available), 1)} ranks, or set use_gpu to False to train on the CPU"
        )
    return list(available[:ranks])


def visible_to_rank(gpus: Sequence[str], local_rank: int, *, wanted: bool | None) -> dict[str, str]:
    """The variables that show a host's GPUs to one of its ranks."""
    if not gpus:
        return {"CUDA_VISIBLE_DEVICES": "-1"} if wanted is False else {}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        # Otherwise CUDA orders devices by speed, and indexes differ from nvidia-smi's.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "LAKELENS_GPU": gpus[local_rank],
    }


def group_by_machine(hellos: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names, for each rank, the group in which local ranks count: its machine, or an executor with its own GPUs."""
    seen: dict[tuple[str, str], set[str]] = {}
    for hello in hellos:
        for address in hello["gpus"][:1]:
            seen.setdefault((hello["machine"], address), set()).add(hello["executor"])
    # Executors that report the same addresses see separate devices: containers number them from 0.
    renumbered = {machine for (machine, _), executors in seen.items() if len(executors) > 1}
    return [
        f"{hello['machine']}-{hello['executor']}" if hello["machine"] in renumbered else hello["machine"]
        for hello in hellos
    ]


def executor_gpus(
    placements: Sequence[RankPlacement], hellos: Sequence[Mapping[str, Any]], *, wanted: bool | None
) -> list[list[str]]:
    """Gives, for each rank, the GPUs of its host's ranks by local rank; empty lists for CPU."""
    if wanted is False or (not wanted and not any(hello["gpus"] for hello in hellos)):
        return [[] for _ in placements]
    own: list[str] = []
    for placement, hello in zip(placements, hellos, strict=True):
        if not hello["gpus"]:
            raise ClusterConfigurationError(
                f"Spark gave the task of rank {placement.rank} on {hello['host']} no GPU; set "
                f"spark.executor.resource.gpu.amount, "
                f"spark.task.resource.gpu.amount=1 and a discovery script, or set use_gpu to False"
            )
        own.append(through_index_map(hello["gpus"][:1], hello["visible_gpus"])[0])
    shown = []
    for placement in placements:
        group = [own[other.rank] for other in placements if other.host == placement.host]
        if len(set(group)) < len(group):
            raise ClusterConfigurationError(
                f"ranks on {hellos[placement.rank]['host']} were given the same GPU ({', '.join(group)}); "
                f"set spark.task.resource.gpu.amount=1"
            )
        shown.append(group)
    return shown
