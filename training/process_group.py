"""The ranks of a job as PyTorch's process group, for training functions that use `torch.distributed`."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import torch
import torch.distributed as dist

from ..errors import LaunchError, NotSupportedError
from .rank import process_context
from .rank.collective_reports import CollectiveReports
from .rank.frames import Kind

_TIMEOUT_S = 5.0
_AGAIN_S = 0.01
_SCOPE = "torch"


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


class RankStore(dist.Store):
    """Values by key for Gloo and NCCL while the ranks join; the launcher closes it once all have joined.

    It has what these need to connect: values are set and awaited. Nothing listens for it but the launcher.
    """

    def __init__(self, address: str, port: str, timeout_s: float) -> None:
        super().__init__()
        host, _, secret = address.partition("/")
        self._host, self._path = host, f"/{secret}:{port}/{_SCOPE}/"
        self._timeout_s = timeout_s

    def set(self, key: str, value: str | bytes) -> None:
        """Stores a value."""
        status, _ = self._request("PUT", key, value.encode() if isinstance(value, str) else value)
        if status != 200:
            raise LaunchError(f"the launcher's store refused {key!r} with {len(value)} bytes (status {status})")

    def get(self, key: str) -> bytes:
        """Waits for a value and returns it."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            status, value = self._request("GET", key)
            if status == 200:
                return value
            if time.monotonic() > deadline:
                raise LaunchError(f"no other rank gave {key!r} within {self._timeout_s:g} s")
            time.sleep(_AGAIN_S)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Waits for the values of some keys."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Returns whether all keys have values; False once the store is closed."""
        try:
            return all(self._request("GET", key)[0] == 200 for key in keys)
        except OSError:
            return False

    def add(self, key: str, amount: int) -> int:
        """Is not there: groups of some of the ranks need it."""
        raise NotSupportedError("all ranks of a job are one process group; start one HorovodRunner for each group")

    def _request(self, method: str, key: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, timeout=_TIMEOUT_S)
        try:
            connection.request(method, self._path + quote(key, safe=""), body)
            answer: Any = connection.getresponse()
            return int(answer.status), bytes(answer.read())
        finally:
            connection.close()
