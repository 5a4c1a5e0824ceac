"""Chooses and describes network interfaces."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
from pathlib import Path

import psutil

from ...errors import LaunchError


def machine_key() -> str:
    """Names this process' loopback interface: equal for two processes if they can connect through it."""
    # Containers share a host's name and addresses, and executors behind a gateway share its address.
    try:
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), str(Path("/proc/self/ns/net").readlink())]
    except OSError:
        parts = [socket.gethostname()]
    return hashlib.sha256(":".join(parts).encode()).hexdigest()[:16]


def executor_key() -> str:
    """Names this Spark executor within its machine: its Python workers share a process group."""
    return str(os.getpgid(0))


def interface_addresses(family: socket.AddressFamily = socket.AF_INET) -> dict[str, list[str]]:
    """Returns the addresses of one family, IPv4 by default, of each network interface of this machine."""
    return {
        # The name of its interface may follow an IPv6 address.
        name: [entry.address.partition("%")[0] for entry in entries if entry.family == family]
        for name, entries in psutil.net_if_addrs().items()
    }


def host_name_is_on(interface: str) -> bool:
    """Returns whether this machine's host name resolves to an address of `interface`."""
    try:
        entries = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        return False
    resolved = {ipaddress.ip_address(entry[4][0]) for entry in entries}
    own = [ipaddress.ip_address(address) for address in interface_addresses().get(interface, [])]
    # Debian's 127.0.1.1 is on the loopback interface too, which answers for all of 127.0.0.0/8.
    return any(found in own or (found.is_loopback and any(a.is_loopback for a in own)) for found in resolved)


def loopback_interface() -> str:
    """Names the loopback interface, `lo` on Linux."""
    for name, addresses in interface_addresses().items():
        if any(ipaddress.ip_address(address).is_loopback for address in addresses):
            return name
    raise LaunchError("this machine has no loopback interface, through which ranks of one host connect; bring `lo` up")


def interface_of(address: str) -> str:
    """Names the interface that has an address."""
    address = address.partition("%")[0]
    known = interface_addresses(socket.AF_INET6 if ":" in address else socket.AF_INET)
    for name, addresses in known.items():
        if address in addresses:
            return name
    raise LaunchError(f"no network interface of this machine has the address {address}; it has {known}")
