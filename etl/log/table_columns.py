"""Small columns of a table's rows, read on the driver from the version's files, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import LakelensError
from ...locations import absolute, has_scheme, is_table_name
from ...log.data_files import read_columns
from ..files.driver_limits import MOST_DATA_FILES, MOST_ROWS, TooMuchError
from ..model import schema
from ..spark.catalog import is_local_to_spark, path_of
from .snapshot import Snapshot, open_snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_COLUMNS = (
    schema.PATH,
    schema.SOURCE_LENGTH,
    schema.SOURCE_MODIFIED,
    schema.ANNOTATION_HASH,
    schema.CONTENT_HASH,
    schema.LABEL_NAME,
    schema.BATCH_ID,
    schema.SPLIT,
)


def open_columns(spark: SparkSession, location: str, names: Sequence[str]) -> TableColumns:
    """Opens a table on a disk or mount that the driver sees.

    Raises:
        TooMuchError: If it is elsewhere.
    """
    place = path_of(spark, location)
    path = absolute(place)
    if has_scheme(path) or not is_local_to_spark(spark, place):
        raise TooMuchError
    return TableColumns(path, names)


def columns_of(spark: SparkSession, location: str, *, exists: bool = True) -> TableColumns | None:
    """Opens an image table for what its rows say of their sources and classes; None where a name has no place yet.

    Raises:
        TooMuchError: If only Spark can open it.
    """
    return open_columns(spark, location, _COLUMNS) if exists or not is_table_name(location) else None


class TableColumns:
    """Columns of one table, at one version after the other; a file is read once.

    Args:
        location: The table's absolute path.
        columns: Names of text columns and of `source_length` and `source_modified`, which become int64: bytes, and
            microseconds since 1970.
    """

    def __init__(self, location: str, columns: Sequence[str]) -> None:
        self._location = location
        self._columns = tuple(columns)
        self._read: dict[str, pa.Table] = {}

    def at(self, version: int | None = None) -> pa.Table | None:
        """Reads a version's rows, as `by_file` does."""
        import pyarrow as pa

        files = self.by_file(version)
        if files is None:
            return None
        return pa.concat_tables(files.values()) if files else self._arrow_schema().empty_table()

    def by_file(self, version: int | None = None) -> dict[str, pa.Table] | None:
        """Reads a version's rows, by the path of their file; None where only Spark can, or should.

        Only Spark can read tables with deletion vectors or mapped columns, and others that `open_snapshot` refuses; and
        a table with more rows or files should not be read by one process. An error is left to Spark to find again.

        Args:
            version: Its number, or None for the latest.
        """
        import pyarrow as pa

        try:
            snapshot = open_snapshot(self._location, version)
            self._check(snapshot)
            files = {path: self._file(snapshot, index) for index, path in enumerate(snapshot.files.paths)}
        except (LakelensError, TooMuchError, OSError, pa.ArrowException):
            return None
        self._read = files
        return files

    def _check(self, snapshot: Snapshot) -> None:
        rows = snapshot.rows
        is_large = len(snapshot.files) > MOST_DATA_FILES or rows is None or rows > MOST_ROWS
        if is_large or set(self._columns) & set(snapshot.partition_columns) - set(schema.PARTITION_COLUMNS):
            raise TooMuchError

    def _file(self, snapshot: Snapshot, index: int) -> pa.Table:

        known = self._read.get(snapshot.files.paths[index])
        if known is not None:
            return known
        return read_columns(snapshot, index, self._arrow_schema())

    def _arrow_schema(self) -> pa.Schema:
        import pyarrow as pa

        numbers = (schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED)
        return pa.schema([(name, pa.int64() if name in numbers else pa.string()) for name in self._columns])
