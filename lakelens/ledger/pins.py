"""Pins: names for versions, which protect their files from VACUUM."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ..errors import InvalidArgumentError, VersionNotFoundError
from .ledger import Ledger, Pin
from .store import change, read
from .vacuum_lease import change_apart

if TYPE_CHECKING:
    from ..table import Table

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")
_RESERVED = ("latest",)


def pins(table: Table) -> dict[str, int]:
    """Returns the pinned versions by their names."""
    return {one.name: one.version for one in read(table).pins}


def pinned_version(table: Table, name: str) -> int | None:
    """Returns the version that a pin names; None if the pin does not exist."""
    return read(table).version_of(name) if _NAME.match(name) else None


def set_pin(table: Table, name: str, version: int, require_files: Callable[[], None], *, replace: bool = False) -> None:
    """Names a version; waits for a VACUUM that may remove its files."""
    check_pin_name(name)

    def pinned(ledger: Ledger) -> Ledger:
        known = ledger.version_of(name)
        if known is not None and known != version and not replace:
            raise InvalidArgumentError(
                f"pin {name!r} of {table.path} already names version {known}; unpin it first, or choose another name"
            )
        require_files()
        return ledger.with_pin(Pin(name, version, datetime.now(timezone.utc)))

    change_apart(table, lambda ledger: ledger.blocks(version), pinned)


def unpin(table: Table, name: str) -> None:
    """Removes a pin."""
    check_pin_name(name)

    def unpinned(ledger: Ledger) -> Ledger:
        if ledger.version_of(name) is None:
            names = ", ".join(one.name for one in ledger.pins) or "none"
            raise VersionNotFoundError(f"{table.path} has no pin {name!r}; its pins: {names}")
        return ledger.without_pin(name)

    change(table, unpinned)


def check_pin_name(name: str) -> None:
    """Checks a pin's name."""
    if not isinstance(name, str) or not _NAME.match(name) or name in _RESERVED:
        raise InvalidArgumentError(
            f"{name!r} is not a pin's name: letters, digits, _ . and -, starting with a letter or _, at most 100, "
            "and not 'latest'"
        )
