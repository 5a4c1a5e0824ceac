"""Opening, reading and writing files wherever a table lives: on a disk or in an object store."""

from __future__ import annotations

import io
import os
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from ..locations import has_scheme
from .clients import client_of, reaching, require_no_fork

# Google's caches may otherwise give an hour-old version of an object that everybody may read
# (https://cloud.google.com/storage/docs/caching).
_UNCACHED = {"Cache-Control": "no-store"}


def local_form(location: str) -> str | None:
    """Returns the path on this machine's disks of a location, or None for one in an object store.

    `dbfs:/x` is `/dbfs/x`, where Databricks mounts it; of a volume, `dbfs:/Volumes/x`, it is `/Volumes/x`.
    """
    if location.startswith("dbfs:"):
        path = "/" + location.removeprefix("dbfs:").lstrip("/")
        return path if path.startswith("/Volumes/") else f"/dbfs{path}"
    return None if has_scheme(location) else location


class _StoredFile(io.RawIOBase):
    """A file in an object store as pyarrow reads it: one request for each range, without a cache."""

    def __init__(self, location: str, storage_options: Mapping[str, str] | None, size: int | None) -> None:
        self._location = location
        self._client, self._key = client_of(location, storage_options)
        with reaching(location):
            self._size = self._client.head(self._key)["size"] if size is None else size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int = -1) -> Any:  # a buffer rather than bytes: pyarrow takes it without a copy
        end = self._size if size < 0 else min(self._size, self._position + size)
        if end <= self._position:
            return b""
        require_no_fork(self._location, "obstore")
        with reaching(self._location):
            data = self._client.get_range(self._key, start=self._position, end=end)
        self._position += len(data)
        return memoryview(data)


@contextmanager
def open_location(location: str, storage_options: Mapping[str, str] | None, size: int | None = None) -> Iterator[Any]:
    """Opens a data file for pyarrow's Parquet reader."""
    path = local_form(location)
    with _StoredFile(location, storage_options, size) if path is None else pa.memory_map(path) as source:
        yield source


def read_bytes(location: str, storage_options: Mapping[str, str] | None) -> bytes:
    """Reads a whole small file."""
    path = local_form(location)
    if path is not None:
        return Path(path).read_bytes()
    client, key = client_of(location, storage_options)
    with reaching(location):
        return bytes(client.get(key).bytes())


def write_bytes(location: str, data: bytes, storage_options: Mapping[str, str] | None) -> None:
    """Writes a whole small file: a reader sees the old content or all of the new, even if the writer dies."""
    path = local_form(location)
    if path is None:
        client, key = client_of(location, storage_options)
        with reaching(location):
            client.put(key, data, attributes=_UNCACHED)
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


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files into a folder of this machine's disks, by relative path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def has_conditional_writes(location: str, storage_options: Mapping[str, str] | None) -> bool:
    """Returns whether the store of a location can refuse to overwrite an object.

    Some stores that are compatible with S3 do not.
    """
    client, key = client_of(location, storage_options)
    from obstore.exceptions import AlreadyExistsError, NotSupportedError

    with reaching(location):
        client.put(key, b"")
        try:
            client.put(key, b"", mode="create")
        except AlreadyExistsError:
            return True
        except (NotImplementedError, NotSupportedError):
            pass
    return False


def exists(location: str, storage_options: Mapping[str, str] | None) -> bool:
    """Whether a file is there, by its absolute path or URI."""
    path = local_form(location)
    if path is not None:
        return Path(path).is_file()
    client, key = client_of(location, storage_options)
    try:
        with reaching(location):
            client.head(key)
    except FileNotFoundError:
        return False
    return True


def remove_file(location: str, storage_options: Mapping[str, str] | None) -> None:
    """Removes a file."""
    path = local_form(location)
    if path is not None:
        Path(path).unlink()
        return
    client, key = client_of(location, storage_options)
    with reaching(location):
        client.delete(key)


def by_folder(locations: Iterable[str]) -> dict[str, list[str]]:
    """Groups files by the folder that holds them, so that folders are listed rather than files looked up."""
    folders: dict[str, list[str]] = defaultdict(list)
    for location in locations:
        folder, _, name = location.rpartition("/")
        folders[folder].append(name)
    return dict(folders)


def times_in(folder: str, storage_options: Mapping[str, str] | None) -> dict[str, int]:
    """Lists the files of a folder with the times of their last change, in milliseconds since 1970."""
    path = local_form(folder)
    if path is not None:
        try:
            with os.scandir(path) as entries:
                return {entry.name: entry.stat().st_mtime_ns // 1_000_000 for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            return {}
    client, key = client_of(folder, storage_options)
    with reaching(folder):
        found = client.list_with_delimiter(key)["objects"]
    return {PurePosixPath(one["path"]).name: int(one["last_modified"].timestamp() * 1000) for one in found}


def names_in(folder: str, storage_options: Mapping[str, str] | None) -> set[str]:
    """Lists the names in a folder; empty if the folder does not exist."""
    path = local_form(folder)
    if path is not None:
        try:
            return {entry.name for entry in Path(path).iterdir()}
        except (FileNotFoundError, NotADirectoryError):
            return set()
    client, key = client_of(folder, storage_options)
    with reaching(folder):
        found = client.list_with_delimiter(key)
    return {PurePosixPath(name).name for name in (*found["common_prefixes"], *(o["path"] for o in found["objects"]))}
