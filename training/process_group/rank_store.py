"""The launcher's store, through which the ranks of a job find one another, as a Store of torch.distributed."""

from __future__ import annotations

import http.client
import time
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import torch.distributed as dist

from ...errors import LaunchError, NotSupportedError

_TIMEOUT_S = 5.0
_AGAIN_S = 0.01
_SCOPE = "torch"


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
