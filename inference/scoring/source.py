"""The input of a scoring run: one version of an image table or one split of it, with what is recorded of its files."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InvalidArgumentError, NotADeltaTableError, NotAnImageTableError
from ...etl.annotations.frames import SourceFile
from ...etl.model import schema
from ...etl.spark.catalog import path_of, read_table, require_delta_table
from ...etl.versions.changes import stated_labels
from ...ledger.protection import using
from ...locations import absolute
from ...log.delta_types import arrow_type
from ...log.opening import open_table
from ...log.snapshot import ROWS_UNKNOWN, DataFiles, Snapshot, open_snapshot
from ...spark.port import count_rows
from ...table import Table
from ...training.feed.plan_builder import require_images
from .images import FILE, ImageFiles
from .predictions import PASSED_DDL

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# `ImageFrames` as a column.
FRAME_TYPE = f"STRUCT<width: INT, height: INT, source: {schema.SOURCE_TYPE}>"


def source_sql(declared: Mapping[str, str], image_column: str) -> str:
    """Writes the SQL of the source file of each image, of type `schema.SOURCE_TYPE`; null if no ingest wrote it."""
    # Boxes are then in pixels of the image itself.
    if not _has_source(declared, image_column):
        return f"cast(null AS {schema.SOURCE_TYPE})"
    fields = ", ".join(f"'{name}', {schema.SOURCE}.{name}" for name in SourceFile._fields)
    return f"cast(named_struct({fields}) AS {schema.SOURCE_TYPE})"


def frame_sql(declared: Mapping[str, str], image_column: str) -> str:
    """Writes the SQL of the size of each image and of its file, of type `FRAME_TYPE`; null if `source_sql` is."""
    if not _has_source(declared, image_column):
        return f"cast(null AS {FRAME_TYPE})"
    sizes = f"'width', {schema.WIDTH}, 'height', {schema.HEIGHT}"
    return f"cast(named_struct({sizes}, 'source', {source_sql(declared, image_column)}) AS {FRAME_TYPE})"


def _has_source(declared: Mapping[str, str], image_column: str) -> bool:
    import pyarrow as pa

    # A table of others may have a column of this name with the camera in it.
    if image_column != schema.IMAGE or not {schema.SOURCE, schema.HEIGHT, schema.WIDTH} <= declared.keys():
        return False
    kind = arrow_type(declared[schema.SOURCE])
    return pa.types.is_struct(kind) and {field.name for field in kind}.issuperset(SourceFile._fields)


# How an image is stored, and what its file was; a table may lack these columns.
_FORM_TYPES = {schema.FORMAT: "string", schema.HEIGHT: "int", schema.WIDTH: "int", schema.SOURCE: schema.SOURCE_TYPE}
_PASSED_TYPES = {name: kind.lower() for name, kind in (column.split() for column in PASSED_DDL.split(", "))}
# Delta's types that Spark and Arrow write as the same text.
_COMPARABLE = ("string", "byte", "short", "integer", "long")


@dataclass(frozen=True)
class SourceColumns:
    """Names of an image table's columns, if they differ from lakelens' own."""

    path: str = schema.PATH  # Names a row
    image: str = schema.IMAGE  # The stored image
    label: str = schema.LABEL  # Number of the true class, or its name if the table numbers names
    # Changes when the image changes, such as a digest or modification time; identifies images scored before
    key: str = schema.CONTENT_HASH

    def check(self, table: str, types: Mapping[str, str]) -> None:
        """Checks that a table has what scoring needs."""
        label = [] if self.label == schema.LABEL else [self.label]
        key = [] if self.key == schema.CONTENT_HASH else [self.key]
        for wanted in (self.path, self.image, *label, *key):
            if wanted not in types:
                raise NotAnImageTableError(
                    f"{table} has no column {wanted!r}; its columns: {', '.join(types)}. Name the columns: "
                    "path_column=..., image_column=..., label_column=..., key=... (--path-column, --image-column, "
                    "--label-column, --key)"
                )
        require_images(table, types, self.image)


@dataclass(frozen=True)
class ScoredTable:
    """One version of an image table, or one split of it."""

    spark: SparkSession  # The session that reads it
    snapshot: Snapshot  # The version, with the data files of the split only
    split: str | None = None  # The split, or None for all rows
    # Names of the columns, if they differ from lakelens' own
    columns: SourceColumns = field(default_factory=SourceColumns)

    @property
    def location(self) -> str:
        """The table's absolute path or URI."""
        return self.snapshot.location

    @property
    def version(self) -> int:
        """The version's number."""
        return self.snapshot.version

    @property
    def name(self) -> str:
        """The table's location and version."""
        return f"{self.location}@{self.version}"

    @property
    def has_key(self) -> bool:
        """Whether a column shows that an image is the same as in another version."""
        return self.columns.key in self.snapshot.schema

    def labels(self) -> dict[str, int]:
        """Gives the class numbers by name from the table's ledger or properties; empty if they have none."""
        return stated_labels(self.snapshot.table, self.version, self.snapshot.configuration)

    def row_count(self) -> int:
        """Counts the rows, from the log if it has their number."""
        return count_rows(self.rows()) if self.snapshot.rows is None else self.snapshot.rows

    def image_files(self, batch_bytes: int) -> ImageFiles:
        """Describes the image column to the tasks that read it; `batch_bytes` bounds their batches."""
        snapshot, columns = self.snapshot, self.columns
        stored = {name: snapshot.stored_names.get(name, name) for name in (columns.path, columns.image, columns.key)}
        keys = {schema.PATH: stored[columns.path]}
        # Data files do not hold partition columns: all rows of a file have one value.
        if snapshot.schema.get(columns.key) in _COMPARABLE and columns.key not in snapshot.partition_columns:
            keys[schema.CONTENT_HASH] = stored[columns.key]
        files = snapshot.files
        deleted = {
            snapshot.file_location(number): files.deleted_rows(number)
            for number, path in enumerate(files.paths)
            if path in files.deleted
        }
        return ImageFiles(stored[columns.image], keys, snapshot.table.storage_options, batch_bytes, deleted)

    def image_size(self) -> tuple[int, int] | None:
        """Gives height and width of the images, if all have one size and the log's statistics have it."""
        actions = open_table(self.snapshot.table).get_add_actions(flatten=True)
        ends = [f"{end}.{name}" for name in (schema.HEIGHT, schema.WIDTH) for end in ("min", "max")]
        if not set(ends) <= set(actions.schema.names):
            return None
        found = [set(actions.column(end).to_pylist()) for end in ends]
        height, width = found[0] | found[1], found[2] | found[3]
        if len(height) != 1 or len(width) != 1 or None in height | width:
            return None
        return int(height.pop()), int(width.pop())

    def rows(self, more: Sequence[Column] = ()) -> DataFrame:
        """Reads all but the image: the columns copied to the predictions, how the image is stored, and where."""
        from pyspark.sql import functions

        rows = self._of_split(read_table(self.spark, self.location, self.version))
        file = functions.col("_metadata.file_path").alias(FILE)
        return rows.select(*self._columns(rows, _PASSED_TYPES | _FORM_TYPES), file, *more)

    def images(self, paths: Collection[str]) -> DataFrame:
        """Reads a few rows with their stored images through Spark."""
        from pyspark.sql import functions

        rows = self._of_split(read_table(self.spark, self.location, self.version))
        return self.with_images(rows).where(functions.col(schema.PATH).isin(list(paths)))

    def with_images(self, rows: DataFrame) -> DataFrame:
        """Takes the columns that `rows` has, but with the stored image, from rows of the table."""
        return rows.select(*self._columns(rows, {**_PASSED_TYPES, **_FORM_TYPES, schema.IMAGE: "binary"}))

    @contextlib.contextmanager
    def protected(self, digest: str, *, stays: bool = True) -> Iterator[Callable[[], None]]:
        """Protects this version from `ImageTable.vacuum`; no longer if the body raises or the process ends."""
        # Each running call has a separate name, so that a failing concurrent call does not remove it. Calls that
        # succeed leave one name for all; none if not `stays`.
        scored = f"score-{digest[:12]}-{self.version}"
        running = f"{scored}-{uuid.uuid4().hex[:12]}"
        table = replace(self.snapshot.table, version=None)
        with using(table, self.version, running, kept_as=scored, stays=stays) as renew:
            yield renew

    def _of_split(self, rows: DataFrame) -> DataFrame:
        return rows if self.split is None else rows.where(rows[schema.SPLIT] == self.split)

    def _source_name(self, name: str) -> str:
        return {
            schema.PATH: self.columns.path,
            schema.IMAGE: self.columns.image,
            schema.LABEL: self.columns.label,
            schema.CONTENT_HASH: self.columns.key,
        }.get(name, name)

    def _columns(self, rows: DataFrame, kinds: Mapping[str, str]) -> list[Column]:
        from pyspark.sql import functions

        columns = []
        has_names = self.snapshot.schema.get(self.columns.label) == "string"
        for name, kind in kinds.items():
            source = self._source_name(name)
            if name == schema.LABEL_NAME and has_names and source not in rows.columns:
                source = self.columns.label
            column = functions.col(f"`{source}`") if source in rows.columns else functions.lit(None)
            if name == schema.SOURCE:
                column = functions.expr(source_sql(self.snapshot.schema, self.columns.image))
            if name == schema.LABEL and has_names:
                column = self._number_of(column)
            columns.append(column.cast(kind).alias(name))
        return columns

    def _number_of(self, name: Column) -> Column:
        """Gives the number of a class by its name; else the text as a number, or null."""
        from pyspark.sql import functions

        number = functions.when(name.rlike("^[0-9]{1,9}$"), name.cast("int"))
        labels = self.labels()
        if not labels:
            return number
        pairs = [functions.lit(value) for pair in labels.items() for value in pair]
        return functions.coalesce(functions.try_element_at(functions.create_map(*pairs), name), number)


def check_by_log(table: Table, split: str | None, columns: SourceColumns) -> Snapshot | None:
    """Checks table, version, columns and split from the log; returns None, unchecked, for a catalog name."""
    if table.is_name:
        return None
    snapshot = open_snapshot(table)
    name = f"{snapshot.location}@{snapshot.version}"
    columns.check(name, snapshot.schema)
    if split is not None:
        if schema.SPLIT not in snapshot.schema:
            raise InvalidArgumentError(f"split={split!r}: {name} has no column {schema.SPLIT!r}")
        if schema.SPLIT in snapshot.files.partitions:
            _require_split(name, split, snapshot.files.partitions[schema.SPLIT].values)
    return snapshot


def open_scored_table(
    spark: SparkSession,
    table: Table,
    split: str | None = None,
    *,
    columns: SourceColumns | None = None,
    snapshot: Snapshot | None = None,
) -> ScoredTable:
    """Resolves a table and a version for scoring; `snapshot` is that version if `check_by_log` has read it already."""
    columns = columns or SourceColumns()
    if snapshot is None:
        require_delta_table(spark, table.location)
        location = absolute(path_of(spark, table.location)).rstrip("/")
        snapshot = check_by_log(replace(table, location=location), split, columns)
    if snapshot is None:
        raise NotADeltaTableError(f"{table.location}: the catalog names no path of it")
    source = ScoredTable(spark, replace(snapshot, files=files_of_split(snapshot, split)), split, columns)
    if split is not None and schema.SPLIT not in snapshot.files.partitions:
        rows = read_table(spark, source.location, source.version)
        _require_split(source.name, split, [row[0] for row in rows.select(schema.SPLIT).distinct().collect()])
    return source


def files_of_split(snapshot: Snapshot, split: str | None) -> DataFiles:
    """Gives the data files of a version with a split; without row counts for files that also hold other splits."""
    if split is None:
        return snapshot.files
    if schema.SPLIT not in snapshot.partition_columns:
        # The log does not show which of a file's rows belong to the split.
        return replace(snapshot.files, rows=np.full(len(snapshot.files), ROWS_UNKNOWN, dtype=np.int64))
    partition = snapshot.files.partitions[schema.SPLIT]
    wanted = [file for file in range(len(snapshot.files)) if partition.at(file) == split]
    return snapshot.files.take(np.array(wanted, dtype=np.int64))


def _require_split(name: str, split: str, known: Collection[str | None]) -> None:
    if split not in known:
        present = ", ".join(sorted(map(str, known))) or "no rows"
        raise InvalidArgumentError(f"split={split!r}: {name} has no such split; it has {present}")
