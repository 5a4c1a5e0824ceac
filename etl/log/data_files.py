"""Data files by snapshot and storage options; a new caller takes `lakelens.log.data_files`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow.parquet as pq

from ...log import data_files as log
from ...log.data_files import exists as exists
from ...log.data_files import remove_files as remove_files
from ...log.snapshot import Snapshot


@contextmanager
def open_parquet(
    snapshot: Snapshot, file: int, storage_options: Mapping[str, str] | None = None
) -> Iterator[pq.ParquetFile]:
    """Opens a data file of a version without deleted rows; columns may be mapped."""
    with log.open_stored(snapshot, file) as parquet:
        yield parquet


def require_files(snapshot: Snapshot, storage_options: Mapping[str, str] | None = None) -> None:
    """Checks that every file of a version is there."""
    log.require_files(snapshot)
