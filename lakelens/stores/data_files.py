"""Opening data files wherever a table lives: mapped into memory on a disk, through fsspec in an object store."""

from __future__ import annotations

import os
import queue
import re
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from ..errors import InvalidArgumentError, LakelensError, StoreError
from ..extras import require
from ..locations import has_scheme, scheme_of
from . import google
from .options import file_system_arguments

# Hadoop's names of a store -> fsspec's, and the package that brings it.
PROTOCOLS = {
    "s3": ("s3", "s3fs"),
    "s3a": ("s3", "s3fs"),
    "s3n": ("s3", "s3fs"),
    "gs": ("gcs", "gcsfs"),
    "gcs": ("gcs", "gcsfs"),
    "abfs": ("abfs", "adlfs"),
    "abfss": ("abfs", "adlfs"),
    "az": ("abfs", "adlfs"),
}
# Arguments of fsspec's writes of small files, which others are to see at once.
_WRITING = {"gcs": google.UNCACHED}
# What clients quote of a store's answer: colours, arrows and XML; and a shared access signature, which is a secret.
_MARKUP = re.compile(r"\x1b\[[0-9;]*m|↳|<[^<>]*>")
_SIGNATURE = re.compile(r"(\bsig(?:nature)?=)[^&\s'\"]+", re.I)
_SAID = 500
# What S3, Google Cloud Storage, Azure and Hadoop's clients of them say of a bucket or container that is not there.
_IS_THERE = re.compile(r"PreconditionFailed|pre-?conditions? .*(failed|did not hold)", re.I)
_NO_BUCKET = re.compile(r"NoSuchBucket|UnknownStoreException|ContainerNotFound|(?i:bucket does not exist)")


def local_form(location: str) -> str | None:
    """Returns the path on this machine's disks of a location, or None for one in an object store.

    `dbfs:/x` is `/dbfs/x`, where Databricks mounts it; of a volume, `dbfs:/Volumes/x`, it is `/Volumes/x`.
    """
    if location.startswith("dbfs:"):
        path = "/" + location.removeprefix("dbfs:").lstrip("/")
        return path if path.startswith("/Volumes/") else f"/dbfs{path}"
    return None if has_scheme(location) else location


def file_system(location: str, storage_options: Mapping[str, str] | None) -> tuple[Any, str]:
    """Returns fsspec's file system for a location in an object store, and the location's path in it.

    Raises:
        InvalidArgumentError: If the scheme is of no store that lakelens reads, or the options do not say how to.
        MissingDependencyError: If the package for the store is not installed.
    """
    scheme = scheme_of(location)
    if scheme not in PROTOCOLS:
        raise unknown_store(location)
    protocol, package = PROTOCOLS[scheme]
    require(f"{location}: reading {scheme}://", package)
    import fsspec

    options = file_system_arguments(protocol, location, storage_options)
    with reaching(location):
        system = fsspec.filesystem(protocol, **options)
    return system, system._strip_protocol(f"{protocol}:{location.split(':', 1)[1]}")


def require_known_store(location: str) -> None:
    """Checks the scheme of a location in an object store.

    Raises:
        InvalidArgumentError: If it is of no store that lakelens reads.
    """
    if scheme_of(location) not in PROTOCOLS:
        raise unknown_store(location)


def unknown_store(location: str) -> InvalidArgumentError:
    """Makes the error about a location whose scheme is of no store that lakelens reads."""
    scheme = scheme_of(location)
    known = ", ".join(sorted(PROTOCOLS))
    instead = "; write abfss://container@account.dfs.core.windows.net/... for the same files"
    return InvalidArgumentError(
        f"{location}: no store of scheme {scheme!r} is known; lakelens reads {known} and disks"
        f"{instead if scheme in ('wasb', 'wasbs') else ''}"
    )


@contextmanager
def reaching(location: str) -> Iterator[None]:
    """Turns what the client of an object store raises into an error of ours; that a file is not there stays as it is.

    Raises:
        StoreError: In place of any other error, which is its cause.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, ImportError, LakelensError):
        raise
    except Exception as error:  # each store's client has exceptions of its own
        raise store_error(location, error) from error


def store_error(location: str, error: Exception) -> StoreError:
    """Makes the error about a store that cannot be reached or refuses, from what its client says."""
    if lacks_bucket(str(error)):
        return no_bucket(location)
    message = _MARKUP.sub(" ", _SIGNATURE.sub(r"\1...", f"{type(error).__name__}: {error}"))
    # Azure tells everything again behind the request's id.
    message = " ".join(message.split()).removeprefix("OSError: ").partition(" RequestId:")[0].rstrip(".")
    message = message if len(message) <= _SAID else f"{message[:_SAID]}..."
    return StoreError(
        f"{location} cannot be reached in its store: {message}. Check the location, the network, and the access in "
        "storage_options or the environment"
    )


def lacks_bucket(said: str) -> bool:
    """Returns whether a client says that a bucket or container is not there."""
    return _NO_BUCKET.search(said) is not None


def no_bucket(location: str) -> StoreError:
    """Makes the error about a bucket or container that is not there."""
    return StoreError(
        f"{location}: there is no such bucket or container. Create it, or check its name, and the endpoint and account "
        "in storage_options or the environment"
    )


class _Reached:
    """A file in an object store, whose errors are ours.

    Arrow calls `read` from C++. A client that waits for a store wakes up now and then and takes the interpreter's lock;
    once the interpreter ends, Python ends such a thread, and that aborts the process if C++ has called it. So the
    client reads in a thread of Python's, and C++ waits for it without waking up.
    """

    def __init__(self, file: Any, location: str) -> None:
        self._file = file
        self._location = location

    def read(self, size: int = -1) -> bytes:
        answer: queue.SimpleQueue[tuple[bytes, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(size, answer), daemon=True, name="lakelens-store").start()
        data, error = answer.get()
        if error is not None:
            with reaching(self._location):
                raise error
        return data

    def _read(self, size: int, answer: queue.SimpleQueue[tuple[bytes, BaseException | None]]) -> None:
        try:
            answer.put((bytes(self._file.read(size)), None))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            answer.put((b"", error))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def open_location(location: str, storage_options: Mapping[str, str] | None, size: int | None = None) -> Iterator[Any]:
    """Opens a data file for pyarrow's Parquet reader.

    Args:
        location: Path or URI.
        storage_options: Access to an object store.
        size: Bytes of the file, which saves an object store the question.
    """
    path = local_form(location)
    if path is not None:
        with pa.memory_map(path) as source:
            yield source
        return
    system, path = file_system(location, storage_options)
    with reaching(location):
        # pyarrow asks for whole column chunks; a cache would only read further ahead and copy.
        file = system.open(path, "rb", size=size, cache_type="none")
    with file as source:
        yield _Reached(source, location)


def read_bytes(location: str, storage_options: Mapping[str, str] | None, end: int | None = None) -> bytes:
    """Reads a whole small file, or its first bytes.

    Args:
        location: Path or URI.
        storage_options: Access to an object store.
        end: Number of bytes; None reads all.

    Raises:
        FileNotFoundError: If there is no such file.
        StoreError: If the store cannot be reached or refuses.
    """
    path = local_form(location)
    if path is not None:
        with Path(path).open("rb") as file:
            return file.read(-1 if end is None else end)
    system, path = file_system(location, storage_options)
    with reaching(location):
        return bytes(system.cat_file(path, end=end))


def write_bytes(location: str, data: bytes, storage_options: Mapping[str, str] | None) -> None:
    """Writes a whole small file: a reader sees the old one or all of the new one, also where the writer dies.

    Args:
        location: Path or URI; on a disk its folder is there.
        data: What the file holds.
        storage_options: Access to an object store.
    """
    path = local_form(location)
    if path is None:
        system, key = file_system(location, storage_options)
        with reaching(location):
            system.pipe_file(key, data, **_WRITING.get(PROTOCOLS[scheme_of(location)][0], {}))
        return
    temporary = Path(path).with_name(f".{Path(path).name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def has_conditional_writes(location: str, storage_options: Mapping[str, str] | None) -> bool:
    """Returns whether the store of a location refuses to overwrite an object if it is asked to.

    Google's and Azure's stores always do, S3 does since 2024; some stores that are compatible with S3 do not.

    Args:
        location: URI of an object that may be overwritten.
        storage_options: Access to the store.
    """
    system, key = file_system(location, storage_options)
    if PROTOCOLS[scheme_of(location)][0] != "s3":
        return True
    with reaching(location):
        system.pipe_file(key, b"")
        try:
            system.pipe_file(key, b"", IfNoneMatch="*")
        except OSError as error:
            return _IS_THERE.search(str(error)) is not None or isinstance(error, FileExistsError)
    return False


def remove_file(location: str, storage_options: Mapping[str, str] | None) -> None:
    """Removes a file.

    Raises:
        FileNotFoundError: If there is no such file; stores that do not tell say nothing.
        StoreError: If the store cannot be reached or refuses.
    """
    path = local_form(location)
    if path is not None:
        Path(path).unlink()
        return
    system, key = file_system(location, storage_options)
    with reaching(location):
        system.rm_file(key)


def by_folder(locations: Iterable[str]) -> dict[str, list[str]]:
    """Groups files by the folder that holds them, so that folders are listed rather than files looked up."""
    folders: dict[str, list[str]] = defaultdict(list)
    for location in locations:
        folder, _, name = location.rpartition("/")
        folders[folder].append(name)
    return dict(folders)


def names_in(folder: str, storage_options: Mapping[str, str] | None) -> set[str]:
    """Lists the names in a folder; none when there is no such folder."""
    path = local_form(folder)
    try:
        if path is not None:
            return {entry.name for entry in Path(path).iterdir()}
        system, path = file_system(folder, storage_options)
        system.invalidate_cache(path)  # what others have written since
        with reaching(folder):
            return {PurePosixPath(name).name for name in system.ls(path, detail=False)}
    except (FileNotFoundError, NotADirectoryError):
        return set()
