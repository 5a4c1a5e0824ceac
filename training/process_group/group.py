"""Joins the ranks of a job to PyTorch's process group, and counts its collectives for the driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..rank import process_context
from ..rank.collective_reports import CollectiveReports
from ..rank.frames import Kind
from .rank_store import RankStore


class _Group:
    """The collectives of this process."""

    entered = 0
    left = 0
    reports: CollectiveReports | None = None


def init() -> None:
    """Makes the ranks of this job torch.distributed's default process group; a second call does nothing.

    Tensors on the CPU travel over Gloo, those on GPUs over NCCL. A rank that has GPUs uses that of its local rank. The
    ranks find one another through the launcher; nothing else listens. Without a launcher the group has one process.
    """
    if dist.is_initialized():
        return
    link = process_context.current()
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(link.local_rank % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if has_gpu else "gloo"
    if link.size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return
    link.send(Kind.JOINING)
    timeout_s = float(os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"])
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["HOROVOD_GLOO_IFACE"]
    store = RankStore(os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"], timeout_s)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=link.rank, world_size=link.size, timeout=timeout)
    if has_gpu:  # NCCL connects at its first collective, for which the store must still be open
        dist.all_reduce(torch.zeros(1, device="cuda"))
    dist.barrier()
    link.send(Kind.JOINED)
    _Group.reports = CollectiveReports(link, lambda: (_Group.entered, _Group.left))


@contextmanager
def counted() -> Iterator[None]:
    """Counts one collective while the block waits for it, so that the driver sees who waits."""
    entered()
    try:
        yield
    finally:
        left()


def entered() -> None:
    """Notes that this rank has begun a collective."""
    _Group.entered += 1


def left(result: Any = None) -> Any:
    """Notes that a collective has ended; returns its result."""
    _Group.left += 1
    return result
