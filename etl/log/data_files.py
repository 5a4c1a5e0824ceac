"""The Parquet files of a version: opening them wherever the table lives, and saying which are gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from ...errors import VersionFilesMissingError
from ...stores.data_files import file_system, local_form, names_in, reaching, remove_file
from ...stores.parquet import open_parquet_file
from .log_files import ranges_of
from .snapshot import Snapshot, locate

_NAMED = 3


@contextmanager
def open_parquet(
    snapshot: Snapshot, file: int, storage_options: Mapping[str, str] | None = None
) -> Iterator[pq.ParquetFile]:
    """Opens a data file of a version.

    Raises:
        VersionFilesMissingError: If it is gone.
        DataFileError: If it is no whole Parquet file.
    """
    try:
        place, size = snapshot.file_location(file), int(snapshot.files.sizes[file])
        with open_parquet_file(place, storage_options, size) as parquet:
            yield parquet
    except FileNotFoundError as error:
        missing = find_missing(snapshot, storage_options)
        raise files_missing(snapshot, missing, storage_options) from error


def find_missing(snapshot: Snapshot, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """Lists those files of a version that are gone, as its log names them."""
    places = [locate(snapshot.location, path).rpartition("/") for path in snapshot.files.paths]
    present = {folder: names_in(folder, storage_options) for folder in {folder for folder, _, _ in places}}
    return [
        path
        for path, (folder, _, name) in zip(snapshot.files.paths, places, strict=True)
        if name not in present[folder]
    ]


def require_files(snapshot: Snapshot, storage_options: Mapping[str, str] | None = None) -> None:
    """Checks that every file of a version is there.

    Raises:
        VersionFilesMissingError: If one is gone; names the first ones and the versions that are whole.
    """
    missing = find_missing(snapshot, storage_options)
    if missing:
        raise files_missing(snapshot, missing, storage_options)


def files_missing(
    snapshot: Snapshot, missing: Sequence[str], storage_options: Mapping[str, str] | None = None
) -> VersionFilesMissingError:
    """Makes the error about files that are gone."""
    from .log_walk import walk_log

    whole = []
    gone: set[str] = set()
    for state in walk_log(snapshot.location, storage_options=storage_options):
        if state.files is None:
            gone = set()
            continue
        gone |= {path for path in state.added if not exists(locate(snapshot.location, path), storage_options)}
        gone -= set(state.removed)
        if not gone:
            whole.append(state.version)
    named = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    return VersionFilesMissingError(
        f"{snapshot.location}@{snapshot.version}: {len(missing)} of its {len(snapshot.files)} data file(s) are gone: "
        f"{named or 'one was taken while it was read'}. They were removed by VACUUM or by hand; pin a version to keep "
        f"its files. Versions with all their files: {ranges_of(whole) or 'none'}"
    )


def exists(location: str, storage_options: Mapping[str, str] | None = None) -> bool:
    """Whether a file is there, by its absolute path or URI."""
    local = local_form(location)
    if local is not None:
        return Path(local).is_file()
    system, path = file_system(location, storage_options)
    system.invalidate_cache(path.rpartition("/")[0])  # what others have taken since it was listed
    with reaching(location):
        return bool(system.exists(path))


def remove_files(
    locations: Iterable[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    before_each: Callable[[], None],
) -> None:
    """Removes files by their absolute paths or URIs; those that are gone already do not matter.

    Args:
        locations: The files.
        storage_options: Access to an object store.
        before_each: Called before each is removed; may raise.
    """
    for location in locations:
        before_each()
        with contextlib.suppress(FileNotFoundError):
            remove_file(location, storage_options)
        local = local_form(location)
        if local is not None:
            Path(local).with_name(f".{Path(local).name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of it
