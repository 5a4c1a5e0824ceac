"""The log by location and storage options; a new caller takes a `Table` and `lakelens.log`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...locations import locate as locate
from ...log import snapshot as log
from ...log.snapshot import ROWS_UNKNOWN as ROWS_UNKNOWN
from ...log.snapshot import DataFiles as DataFiles
from ...log.snapshot import PartitionColumn as PartitionColumn
from ...log.snapshot import Snapshot as Snapshot
from ...log.snapshot import VersionIdentity as VersionIdentity
from ...log.snapshot import has_deletion_vectors as has_deletion_vectors
from ...table import Table, Version


def open_snapshot(
    location: str | Path,
    version: Version = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    mapped: bool = False,
) -> Snapshot:
    """Opens a version; with deletion vectors or, unless `mapped`, column mapping it is refused."""
    snapshot = Table.of(location, version, storage_options).snapshot()
    if snapshot.files.deleted or not mapped:
        snapshot.require_plain()
    return snapshot


def identify(
    location: str | Path, version: Version = None, storage_options: Mapping[str, str] | None = None
) -> VersionIdentity:
    """Resolves a version, whatever its files hold."""
    return log.identify(Table.of(location, version, storage_options))
