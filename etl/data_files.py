"""The Parquet files of a version: opening them wherever the table lives, and saying which are gone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from ..errors import VersionFilesMissingError
from ..locations import has_scheme
from .snapshot import Snapshot, locate

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_NAMED = 3


@contextmanager
def open_data_file(location: str, storage_options: Mapping[str, str] | None = None) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file by its absolute path or URI, on a disk or through fsspec.

    Raises:
        FileNotFoundError: If it is gone.
    """
    if not has_scheme(location):
        with pq.ParquetFile(location, memory_map=True) as parquet:
            yield parquet
        return
    system, path = _file_system(location, storage_options)
    with system.open(path, "rb") as stream, pq.ParquetFile(stream) as parquet:
        yield parquet


@contextmanager
def open_parquet(
    snapshot: Snapshot, file: int, storage_options: Mapping[str, str] | None = None
) -> Iterator[pq.ParquetFile]:
    """Opens a data file of a version.

    Raises:
        VersionFilesMissingError: If it is gone.
    """
    try:
        with open_data_file(snapshot.file_location(file), storage_options) as parquet:
            yield parquet
    except FileNotFoundError as error:
        raise files_missing(snapshot, find_missing(snapshot, storage_options=storage_options)) from error


def find_missing(
    snapshot: Snapshot, files: Sequence[str] | None = None, storage_options: Mapping[str, str] | None = None
) -> list[str]:
    """Lists those files of a version that are gone, as its log names them.

    Args:
        snapshot: The version.
        files: Paths to look for; None looks for all that the version has.
        storage_options: Access to an object store.
    """
    wanted = snapshot.files.paths if files is None else files
    return [path for path in wanted if not exists(locate(snapshot.location, path), storage_options)]


def require_files(snapshot: Snapshot, storage_options: Mapping[str, str] | None = None) -> None:
    """Checks that every file of a version is there.

    Raises:
        VersionFilesMissingError: If one is gone; names the first ones and the versions that are whole.
    """
    missing = find_missing(snapshot, storage_options=storage_options)
    if missing:
        raise files_missing(snapshot, missing, storage_options)


def files_missing(
    snapshot: Snapshot, missing: Sequence[str], storage_options: Mapping[str, str] | None = None
) -> VersionFilesMissingError:
    """Makes the error about files that are gone."""
    from .log_walk import walk_log

    whole = []
    known: dict[str, bool] = {}
    for state in walk_log(snapshot.location, storage_options=storage_options):
        for path in state.files or ():
            if path not in known:
                known[path] = exists(locate(snapshot.location, path), storage_options)
        if state.files is not None and all(known[path] for path in state.files):
            whole.append(state.version)
    named = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    return VersionFilesMissingError(
        f"{snapshot.location}@{snapshot.version}: {len(missing)} of its {len(snapshot.files)} data file(s) are gone: "
        f"{named or 'one was taken while it was read'}. A VACUUM or a hand has removed them; pin a version to keep its "
        f"files. Versions with all their files: {ranges_of(whole) or 'none'}"
    )


def exists(location: str, storage_options: Mapping[str, str] | None = None) -> bool:
    """Whether a file is there."""
    if not has_scheme(location):
        return Path(location).is_file()
    system, path = _file_system(location, storage_options)
    return bool(system.exists(path))


def remove_files(locations: Iterable[str], storage_options: Mapping[str, str] | None = None) -> None:
    """Removes files by their absolute paths or URIs; those that are gone already do not matter."""
    for location in locations:
        if has_scheme(location):
            system, key = _file_system(location, storage_options)
            with contextlib.suppress(FileNotFoundError):
                system.rm_file(key)
            continue
        path = Path(location)
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of it


def ranges_of(numbers: Sequence[int]) -> str:
    """Writes sorted numbers as people do: `0, 3 to 7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in spans)


def _file_system(location: str, storage_options: Mapping[str, str] | None) -> tuple[AbstractFileSystem, str]:
    import fsspec

    system, path = fsspec.core.url_to_fs(location, **dict(storage_options or {}))
    return system, path
