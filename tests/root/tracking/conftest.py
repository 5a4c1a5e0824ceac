"""What the tests of tracking share."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from mlflow_stores import put_store


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    return put_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def silent_server(monkeypatch) -> Iterator[str]:
    """What a server that is stopped looks like: the kernel accepts connections for it, and nobody answers."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
