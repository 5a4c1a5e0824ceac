"""The log by location and storage options; a new caller takes a `Table` and `lakelens.log`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...log import opening as log
from ...table import Table, Version

if TYPE_CHECKING:
    from deltalake import DeltaTable


@contextmanager
def log_of(place: str, *, whole: bool = False) -> Iterator[str]:
    """Returns a table's location as delta-rs takes it."""
    yield log.uri_for_delta_rs(Table.of(place))


def location_of(location: str | Path) -> str:
    """Returns a table's absolute path or URI."""
    return Table.of(location).path


def open_log(place: str, at: str, version: Version, storage_options: Mapping[str, str] | None) -> DeltaTable:
    """Opens a table at a version."""
    return log.open_table(Table.of(at, version, storage_options))


def place_of(location: str | Path, storage_options: Mapping[str, str] | None = None) -> str:
    """Returns the place of a table whatever its versions use, and whether or not they can be read."""
    table = Table.of(location, None, storage_options)
    log.require_entries(table)
    return table.path
