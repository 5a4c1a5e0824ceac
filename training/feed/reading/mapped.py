"""Large values of uncompressed columns, such as images, where they lie in a file on this machine's disks.

pyarrow reads a column from the start of its row group and copies every value twice on the way. A value that is stored
as it is needs neither: the file is mapped into memory, the pages' headers and the values' lengths are gone through, and
a value is read where it is used, without those before it. What is compressed, encoded otherwise, small, or in an object
store is left to pyarrow.

The format: https://github.com/apache/parquet-format (PageHeader in parquet.thrift; Encodings.md, PLAIN and RLE).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ....stores.data_files import local_form

# Going through lengths costs some 0.2 microseconds a value; smaller ones are read faster as a whole.
_SMALLEST_MEAN_BYTES = 1024
# Elsewhere (NFS, FUSE) a failing read of mapped memory would kill the process, and a hanging one never end.
_LOCAL_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs"})
_DATA_PAGE, _DATA_PAGE_V2 = 0, 3
_PLAIN, _RLE = 0, 3
_LENGTH = struct.Struct("<I")
_VARINT_BITS = 63

_libc = ctypes.CDLL(None)


class _UnknownFormError(Exception):
    """Raised when a column chunk is not of the form that is read here."""


class MappedColumn:
    """Some rows of a column of bytes as views of the mapped file.

    Args:
        data: The column chunk.
        starts: Where each row's value begins in `data`; -1 is null.
        ends: Where it ends.
    """

    def __init__(self, data: memoryview, starts: list[int], ends: list[int]) -> None:
        self._data = data
        self._starts = starts
        self._ends = ends

    def at(self, row: int) -> memoryview | None:
        """Gives the bytes of one row, None for null."""
        start = self._starts[row]
        return self._data[start : self._ends[row]] if start >= 0 else None


def map_column(
    location: str, footer: pq.FileMetaData, row_group: int, column: str, first: int, last: int
) -> MappedColumn | None:
    """Finds the values of some rows of a column of bytes.

    Args:
        location: Path or URI of the file.
        footer: Its footer.
        row_group: Index of the row group.
        column: Name of the column.
        first: First row of the row group.
        last: Row after the last.

    Returns:
        The rows `first` to `last`, or None where pyarrow has to read them.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    path = local_form(location)
    index = _index_of(footer, column)
    if path is None or index is None:
        return None
    chunk = footer.row_group(row_group).column(index)
    if (
        chunk.physical_type != "BYTE_ARRAY"
        or chunk.compression != "UNCOMPRESSED"
        or chunk.has_dictionary_page
        or chunk.total_compressed_size < _SMALLEST_MEAN_BYTES * max(1, chunk.num_values)
        or not _is_local(Path(path).stat().st_dev)
    ):
        return None
    with pa.memory_map(path) as source:
        if chunk.data_page_offset + chunk.total_compressed_size > source.size():
            return None
        source.seek(chunk.data_page_offset)
        # The buffer keeps the mapping; the file itself is closed, so that many row groups need no more descriptors.
        buffer = source.read_buffer(chunk.total_compressed_size)
    data = memoryview(buffer).cast("B")
    try:
        places = _places(data, footer.schema.column(index).max_definition_level, first, last)
    except (_UnknownFormError, LookupError, TypeError, struct.error, RecursionError):
        return None  # pyarrow says what is wrong with it
    _unmap_pages(buffer)
    return MappedColumn(data, *places)


def _unmap_pages(buffer: pa.Buffer) -> None:
    """Takes mapped pages out of this process; the kernel maps one again when it is next read.

    To read a length maps the pages around it, so after a walk through the lengths the whole chunk would count as memory
    of this process, for a few rows of it.
    """
    start = -(-buffer.address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (buffer.address + buffer.size) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(mmap.MADV_DONTNEED))


def _index_of(footer: pq.FileMetaData, column: str) -> int | None:
    """Finds the flat column of a name."""
    found = [i for i in range(footer.num_columns) if footer.schema.column(i).path == column]
    if len(found) != 1:
        return None
    described = footer.schema.column(found[0])
    return found[0] if described.max_repetition_level == 0 and described.max_definition_level <= 1 else None


@lru_cache(maxsize=256)
def _is_local(device: int) -> bool:
    """Tells whether a device is a file system of this machine; what cannot be told is not."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for mount in mounts:
        place, _, kind = mount.partition(" - ")
        if place.split()[2] == wanted:
            return kind.split()[0] in _LOCAL_FILE_SYSTEMS
    return False


class _Page(NamedTuple):
    """A data page.

    Attributes:
        values: Values in it, nulls included.
        levels: Where its definition levels begin, and end; equal where there are none.
        start: Where its values begin.
        end: Where they end, and the next page begins.
    """

    values: int
    levels: tuple[int, int]
    start: int
    end: int


def _places(data: memoryview, nullable: int, first: int, last: int) -> tuple[list[int], list[int]]:
    """Finds where the values of rows `first` to `last` begin and end."""
    starts: list[int] = []
    ends: list[int] = []
    row = 0
    for page in _pages(data, nullable):
        if row >= last:
            break
        if row + page.values > first:
            present = _present(data[slice(*page.levels)], page.values) if nullable else None
            _go_through(data, page, present, starts, ends)
            cut = max(0, first - row)
            if cut:
                del starts[:cut], ends[:cut]
        row += page.values
    count = last - first
    if len(starts) < count:
        raise _UnknownFormError
    return starts[:count], ends[:count]


def _go_through(
    data: memoryview, page: _Page, present: npt.NDArray[np.bool_] | None, starts: list[int], ends: list[int]
) -> None:
    """Adds the places of a page's values: each is its length and then its bytes."""
    place = page.start
    for row in range(page.values):
        if present is not None and not present[row]:
            starts.append(-1)
            ends.append(-1)
            continue
        (length,) = _LENGTH.unpack_from(data, place)
        starts.append(place + _LENGTH.size)
        place += _LENGTH.size + length
        ends.append(place)
    if place != page.end:
        raise _UnknownFormError


def _pages(data: memoryview, nullable: int) -> Iterator[_Page]:
    """Goes from page to page of a column chunk."""
    place = 0
    while place < len(data):
        header = _Compact(data, place)
        fields = header.structure()
        start, end = header.place, header.place + fields[3]
        if not start <= end <= len(data):
            raise _UnknownFormError
        kind = fields[1]
        if kind == _DATA_PAGE:
            described = fields[5]
            if described[2] != _PLAIN or (nullable and described[3] != _RLE):
                raise _UnknownFormError
            levels = (start, start)
            if nullable:
                levels = (start + _LENGTH.size, start + _LENGTH.size + _LENGTH.unpack_from(data, start)[0])
            yield _Page(described[1], levels, levels[1], end)
        elif kind == _DATA_PAGE_V2:
            described = fields[8]
            if described[4] != _PLAIN or described[6]:
                raise _UnknownFormError
            levels = (start, start + described[5])
            yield _Page(described[1], levels, levels[1], end)
        else:
            raise _UnknownFormError
        place = end


def _present(levels: memoryview, count: int) -> npt.NDArray[np.bool_] | None:
    """Decodes definition levels of one bit, which tell nulls (0) from values (1); None where all are values."""
    runs: list[npt.NDArray[np.uint8]] = []
    decoded = 0
    reader = _Compact(levels, 0)
    while decoded < count:
        head = reader.varint()
        if head & 1:
            packed = np.frombuffer(reader.take(head >> 1), dtype=np.uint8)
            runs.append(np.unpackbits(packed, bitorder="little"))
        else:
            value = reader.take(1)[0]
            if value and not runs and head >> 1 >= count:
                return None
            runs.append(np.full(min(head >> 1, count), value, dtype=np.uint8))
        decoded += len(runs[-1])
        if not len(runs[-1]):
            raise _UnknownFormError
    return np.concatenate(runs)[:count].astype(bool)


class _Compact:
    """Reads Thrift's compact protocol.

    Args:
        data: What is read.
        place: Where to begin.

    Attributes:
        place: Where the next value begins.
    """

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self.place = place

    def take(self, count: int) -> memoryview:
        """Gives the next bytes."""
        taken = self._data[self.place : self.place + count]
        if len(taken) < count:
            raise _UnknownFormError
        self.place += count
        return taken

    def varint(self) -> int:
        """Reads an unsigned number of seven bits a byte."""
        value, shift = 0, 0
        while True:
            byte = self._data[self.place]
            self.place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > _VARINT_BITS:
                raise _UnknownFormError

    def structure(self) -> dict[int, Any]:
        """Reads a structure: its values by the numbers of their fields."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self.take(1)[0]:
            step, kind = head >> 4, head & 0x0F
            number = number + step if step else self._zigzag()
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        return fields

    def _zigzag(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def _value(self, kind: int) -> Any:
        if kind == 3:
            return self.take(1)[0]
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self.take(8)
        if kind == 8:
            return self.take(self.varint())
        if kind == 12:
            return self.structure()
        raise _UnknownFormError  # page headers hold no lists and no maps
