"""Which interface a rank's address belongs to."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from lakelens.errors import LaunchError
from lakelens.training.rank import network as hosts
from lakelens.training.rank.network import interface_of

pytestmark = pytest.mark.unit


def test_an_interface_is_found_by_its_address_of_either_family(monkeypatch):
    entries = {
        "lo": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")],
        "eth0": [(socket.AF_INET, "10.0.0.2"), (socket.AF_INET6, "fd00::2"), (socket.AF_INET6, "fe80::1%eth0")],
    }
    found = {name: [SimpleNamespace(family=family, address=text) for family, text in entries[name]] for name in entries}
    monkeypatch.setattr(hosts.psutil, "net_if_addrs", lambda: found)
    assert [interface_of(text) for text in ("10.0.0.2", "::1", "fd00::2", "fe80::1")] == ["eth0", "lo", "eth0", "eth0"]
    with pytest.raises(LaunchError, match=r"no network interface .* the address fd00::3; it has .*'eth0': \['fd00::2'"):
        interface_of("fd00::3")


@pytest.mark.parametrize(
    ("resolved", "interface", "is_on"),
    [
        ("127.0.1.1", "lo", True),
        ("127.0.1.1", "eth0", False),
        ("10.0.0.5", "eth0", True),
        ("10.0.0.5", "lo", False),
        ("10.0.0.5", "eth1", False),
    ],
)
def test_a_host_name_is_on_the_interface_that_has_its_address(monkeypatch, resolved, interface, is_on):
    monkeypatch.setattr(hosts, "interface_addresses", lambda *_: {"lo": ["127.0.0.1"], "eth0": ["10.0.0.5"]})
    monkeypatch.setattr(hosts.socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", (resolved, 0))])
    assert hosts.host_name_is_on(interface) is is_on
