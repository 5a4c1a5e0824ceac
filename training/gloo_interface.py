"""Makes all of Gloo listen on the interface that it was given.

Horovod 0.28.1 obeys HOROVOD_GLOO_IFACE for its first three groups of connections only. Those of process sets, of which
there is always one, are made with an empty name (gloo_context.cc, `InitializeForProcessSet`: the object's own
`gloo_iface_` was never set); Gloo then listens on whatever address the machine's host name resolves to. That may be an
outer interface where loopback was asked for, or 127.0.1.1 (Debian's default) where other hosts must connect. So, in the
rank's process only, Horovod's library is given another `gethostname`: one that answers with the interface's address,
which resolves to itself.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .hosts import interface_addresses

_LIBRARY = "/horovod/tensorflow/mpi_lib"
_SHT_RELA = 4
_SHF_ALLOC = 2
_SECTION = struct.Struct("<IIQQQQIIQQ")
_RELOCATION = struct.Struct("<QQq")
_SYMBOL = struct.Struct("<IBBHQQ")
_PROT_READ, _PROT_WRITE = 1, 2
_HOOK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)

# The library keeps calling it for as long as the process lives.
_installed: list[Any] = []


@dataclass(frozen=True)
class _Mapping:
    """Where a library is in memory."""

    path: Path
    base: int
    regions: tuple[tuple[int, int, str], ...]


def listen_on(interface: str) -> bool:
    """Makes Gloo's connections of process sets listen on an interface; call it after Horovod's library is loaded.

    Args:
        interface: Its name, such as `lo`.

    Returns:
        Whether that could be done: only for ELF libraries (Linux), and for an interface with an IPv4 address.
    """
    addresses = interface_addresses().get(interface)
    mapping = _find_library()
    if not addresses or mapping is None:
        return False
    answer = addresses[0].encode() + b"\0"

    def host_name(buffer: int, size: int) -> int:
        ctypes.memmove(buffer, answer, min(size, len(answer)))
        return 0

    hook = _HOOK(host_name)
    slots = relocation_offsets(mapping.path.read_bytes(), "gethostname")
    for offset in slots:
        _write_pointer(mapping, mapping.base + offset, ctypes.cast(hook, ctypes.c_void_p).value or 0)
    _installed.append(hook)
    return bool(slots)


def relocation_offsets(image: bytes, symbol: str) -> list[int]:
    """Finds where an ELF library keeps the addresses of a function that it imports.

    Args:
        image: The library's file, 64-bit little-endian.
        symbol: The function's name.

    Returns:
        Offsets from the library's base; empty if this is no such file or it does not import the function.
    """
    if image[:6] != b"\x7fELF\x02\x01":
        return []
    (start,) = struct.unpack_from("<Q", image, 0x28)
    entry_bytes, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [_SECTION.unpack_from(image, start + index * entry_bytes) for index in range(count)]
    found = []
    for _, kind, flags, _, offset, size, link, _, _, _ in sections:
        if kind != _SHT_RELA or not flags & _SHF_ALLOC or link >= len(sections):
            continue
        symbols = sections[link]
        names = sections[symbols[6]]
        for position in range(offset, offset + size, _RELOCATION.size):
            slot, info, _ = _RELOCATION.unpack_from(image, position)
            if info >> 32 == 0:
                continue
            (name, *_) = _SYMBOL.unpack_from(image, symbols[4] + (info >> 32) * _SYMBOL.size)
            begin = names[4] + name
            if image[begin : image.index(b"\0", begin)] == symbol.encode():
                found.append(slot)
    return found


def _find_library() -> _Mapping | None:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    path, regions, base = None, [], None
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or _LIBRARY not in fields[5]:
            continue
        low, high = (int(address, 16) for address in fields[0].split("-"))
        regions.append((low, high, fields[1]))
        if int(fields[2], 16) == 0:
            path, base = Path(fields[5]), low
    return _Mapping(path, base, tuple(regions)) if path is not None and base is not None else None


def _write_pointer(mapping: _Mapping, address: int, value: int) -> None:
    """Writes into the library's table of imports, which the loader may have made read-only."""
    writable = any(low <= address < high and "w" in permissions for low, high, permissions in mapping.regions)
    page = ctypes.c_void_p(address - address % mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    if not writable and libc.mprotect(page, mmap.PAGESIZE, _PROT_READ | _PROT_WRITE) != 0:
        return
    ctypes.c_void_p.from_address(address).value = value
    if not writable:
        libc.mprotect(page, mmap.PAGESIZE, _PROT_READ)
