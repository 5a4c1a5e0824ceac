"""Opening, reading and writing files wherever a table lives, Parquet among them, with errors that name the file."""

from __future__ import annotations

import io
import os
import re
import struct
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DataFileError
from ..locations import has_scheme
from .clients import client_of, reaching, require_no_fork

# Google's caches may otherwise give an hour-old version of an object that everybody may read
# (https://cloud.google.com/storage/docs/caching).
_UNCACHED = {"Cache-Control": "no-store"}


def local_form(location: str) -> str | None:
    """Returns a location's path on this machine's disks, such as `/dbfs/x` of `dbfs:/x`; None in an object store."""
    if location.startswith("dbfs:"):
        path = "/" + location.removeprefix("dbfs:").lstrip("/")
        return path if path.startswith("/Volumes/") else f"/dbfs{path}"
    return None if has_scheme(location) else location


# delta-rs decodes a path twice, reads a backslash as a slash and refuses control characters. In a URI it reads ? and #
# as a URL's query and fragment. It would open another table, or none.
_MISREAD_PATH = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")
_MISREAD_URI = re.compile(r"%[0-9A-Fa-f]{2}|[?#\\\x00-\x1f\x7f]")
# A write panics, which Python cannot catch as an Exception.
_UNWRITABLE = re.compile(r"[\[\]^|]")


def misread_part(place: str) -> str | None:
    """Returns what of a location delta-rs would read as something else; None if it takes all of it."""
    local = local_form(place)
    found = _MISREAD_URI.search(place) if local is None else _MISREAD_PATH.search(local)
    return None if found is None else found[0]


def unwritable_part(place: str) -> str | None:
    """Returns what of a location keeps delta-rs from a write there, though it can read; None if it can write."""
    found = _UNWRITABLE.search(place)
    return None if found is None else found[0]


def delta_uri(place: str) -> str:
    """Writes a location as delta-rs takes it; `dbfs:/` is the path where Databricks mounts it."""
    local = local_form(place)
    if local is not None:
        return local
    # Its gcs:// is another client, which takes none of the options.
    return f"gs:{place.partition(':')[2]}" if place.lower().startswith("gcs:") else place


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
    """Returns whether a store can refuse to overwrite an object; some that are compatible with S3 cannot."""
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


_MAGIC = b"PAR1"
_TAIL = struct.Struct("<I4s")  # length of the footer, magic
# The key under which a writer leaves its Arrow schema, and another of that length that means nothing to readers.
_ARROW_SCHEMA = b"ARROW:schema"
_NO_SCHEMA = b"arrow-schema"
_VIEW_TYPE = re.compile(r"\b(string|binary)_view\b")


@contextmanager
def open_parquet_file(
    location: str, storage_options: Mapping[str, str] | None = None, size: int | None = None
) -> Iterator[pq.ParquetFile]:
    """Opens a data file and gives it to pyarrow's Parquet reader."""
    with naming(location), open_location(location, storage_options, size) as source:
        yield parquet_of(source)


@contextmanager
def naming(location: str) -> Iterator[None]:
    """Turns Arrow's complaints about what a file holds into an error that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        # Arrow's own complaint about broken pages is a bare OSError without a number; a store's errors are not.
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise
        raise DataFileError(
            f"{location} cannot be read as Parquet: {error}. The file is damaged, was cut short, or holds what "
            f"pyarrow {pa.__version__} does not know; restore it, or write the table again"
        ) from error


def parquet_of(source: Any, footer: pq.FileMetaData | None = None, buffer_bytes: int = 0) -> pq.ParquetFile:
    """Returns an open file to pyarrow's reader."""
    # Writers of newer Arrow (delta-rs on polars or arro3 data) leave an Arrow schema with view types in the footer.
    # pyarrow 14 refuses them; later ones lack functions for them, such as `array_take`. The other Parquet types are the
    # plain ones, so such a file is read by these alone.
    # Spark writes times as INT96, which pyarrow would read as nanoseconds: a wrong time beyond 1677 to 2262.
    settings: dict[str, Any] = {
        "pre_buffer": False,  # Arrow joins the threads that would read ahead when the process ends, hanging ones too
        "buffer_size": buffer_bytes,
        "coerce_int96_timestamp_unit": "us",
    }
    try:
        opened = pq.ParquetFile(source, metadata=footer, **settings)
        if not any(_VIEW_TYPE.search(str(kind)) for kind in opened.schema_arrow.types):
            return opened
    except pa.ArrowInvalid as error:
        if "Unrecognized type" not in str(error):
            raise
    return pq.ParquetFile(source, metadata=_plain_footer(source), **settings)


def _plain_footer(source: Any) -> pq.FileMetaData:
    """Parses a file's footer without the Arrow schema that its writer left."""
    end = source.seek(0, io.SEEK_END) or source.tell()
    source.seek(end - _TAIL.size)
    length, _ = _TAIL.unpack(source.read(_TAIL.size))
    source.seek(end - _TAIL.size - length)
    footer = bytes(source.read(length)).replace(_ARROW_SCHEMA, _NO_SCHEMA)
    return pq.read_metadata(pa.BufferReader(_MAGIC + footer + _TAIL.pack(length, _MAGIC)))


def rows_in_utc(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Returns rows as dictionaries whose times carry their zone: Delta's are UTC, which Spark's files do not say."""
    return [
        {
            name: value.replace(tzinfo=timezone.utc) if isinstance(value, datetime) and value.tzinfo is None else value
            for name, value in row.items()
        }
        for row in rows.to_pylist()
    ]
