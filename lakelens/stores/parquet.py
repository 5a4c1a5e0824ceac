"""Opening Parquet files wherever a table lives, with errors that name the file."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DataFileError
from .data_files import open_location

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
    """Returns an open file to pyarrow's reader.

    Writers of newer Arrow (delta-rs on polars or arro3 data) leave an Arrow schema with view types in the footer.
    pyarrow 14 refuses them ("Unrecognized type: 23"); later ones read them, but lack functions for them, such as
    `array_take`. The other Parquet types are the plain ones, so such a file is read by these alone.
    """
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
