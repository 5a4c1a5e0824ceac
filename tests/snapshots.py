"""Versions of tables, opened as the code opens them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lakelens.log import snapshot
from lakelens.log.snapshot import Snapshot
from lakelens.table import Table


def open_snapshot(
    location: Path | str, version: object = None, storage_options: Mapping[str, str] | None = None
) -> Snapshot:
    return snapshot.open_snapshot(Table.of(location, version, storage_options))
