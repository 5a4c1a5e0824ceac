"""What strangers can do to the store in which ranks meet: nothing."""

from __future__ import annotations

import contextlib
import http.client
import pickle
import socket
from collections.abc import Iterator

import pytest

from lakelens.training.runner.processes.gloo_store import MAX_VALUE_BYTES, LoopbackStore

pytestmark = pytest.mark.unit


class Poison:
    """A pickle that leaves a trace if it is ever loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture
def store() -> Iterator[LoopbackStore]:
    with contextlib.closing(LoopbackStore(size=2)) as store:
        yield store


def request(store, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=90)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def prefix(store):
    """The path that Gloo's client makes of the address that it is given."""
    address = store.environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    return "/" + f"{address}:{store.environment['HOROVOD_GLOO_RENDEZVOUS_PORT']}".split("/", 1)[1]


def test_a_rank_puts_and_gets_opaque_bytes_that_execute_nothing(store, tmp_path):
    value = pickle.dumps(Poison(tmp_path / "executed")) + bytes(range(256))
    assert request(store, "PUT", f"{prefix(store)}/global_/0", value) == (200, b"")
    assert request(store, "GET", f"{prefix(store)}/global_/0") == (200, value)
    assert request(store, "GET", f"{prefix(store)}/global_/1") == (404, b"")
    assert request(store, "DELETE", f"{prefix(store)}/global_/0") == (200, b"")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("path", ["/global_/0", "/wrong/global_/0", "/", "/%00/x/y", "//global_/0", "*"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_stranger_is_refused(store, method, path):
    store.put("global_/0", b"address")
    assert request(store, method, path, b"x" if method == "PUT" else None) == (403, b"")
    assert store.get("global_/0") == b"address"


def test_nearly_the_secret_and_the_secret_of_another_store_are_not_the_secret(store):
    store.put("global_/0", b"address")
    with contextlib.closing(LoopbackStore(2)) as other:
        secret_of_other = prefix(other).rpartition(":")[0] + f":{store.port}"
    for wrong in (prefix(store)[:-1], prefix(store) + "0", secret_of_other):
        assert request(store, "GET", wrong + "/global_/0")[0] == 403


@pytest.mark.parametrize("length", [str(MAX_VALUE_BYTES + 1), "99999999999", "-1", "many", ""])
def test_an_oversized_or_nonsensical_body_is_refused_unread(store, length):
    status, _ = request(store, "PUT", f"{prefix(store)}/global_/0", headers={"Content-Length": length})
    assert status == 413
    assert store.get("global_/0") is None


def test_a_body_that_ends_early_is_not_stored(store):
    with socket.create_connection(("127.0.0.1", store.port), timeout=5) as client:
        client.sendall(f"PUT {prefix(store)}/global_/0 HTTP/1.1\r\nContent-Length: 100\r\n\r\nonly".encode())
        client.shutdown(socket.SHUT_WR)
        assert b" 400 " in client.recv(1000)
    assert store.get("global_/0") is None


def test_the_number_and_length_of_keys_are_bounded(store):
    taken = sum(store.put(f"scope/{number}", b"") for number in range(1000))
    assert taken == 2 * 256
    assert not store.put("x" * 513, b"")
    assert not store.put("big", bytes(MAX_VALUE_BYTES + 1))


def test_the_store_listens_on_loopback_only_and_closes(store):
    import psutil

    ports = {
        c.laddr for c in psutil.Process().net_connections("inet") if c.status == "LISTEN" and c.laddr.port == store.port
    }
    assert {address.ip for address in ports} == {"127.0.0.1"}
    store.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", store.port), timeout=1)
