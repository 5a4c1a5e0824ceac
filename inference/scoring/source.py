"""The input of a scoring run: one version of an image table, or one split of it."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np

from ...errors import InvalidArgumentError, NotADeltaTableError, NotAnImageTableError
from ...etl.model import schema
from ...etl.spark.catalog import is_delta_table, path_of, read_table
from ...etl.versions.classes import stated_labels
from ...ledger.uses import using
from ...locations import absolute
from ...log.opening import open_table
from ...log.snapshot import ROWS_UNKNOWN, DataFiles, Snapshot
from ...table import Table
from ...training.feed.plan_builder import require_images
from .predictions import PASSED_DDL

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FILE = "_file"
# Stands for all data files of a version whose rows only Spark can read.
ALL_FILES = ""

# Columns that the predictor reads; all but the image may be missing.
_STORED_TYPES = {schema.IMAGE: "binary", schema.FORMAT: "string", schema.HEIGHT: "int", schema.WIDTH: "int"}
_PASSED_TYPES = {name: kind.lower() for name, kind in (column.split() for column in PASSED_DDL.split(", "))}


@dataclass(frozen=True)
class SourceColumns:
    """Names of an image table's columns, if they differ from lakelens' own.

    Attributes:
        path: Names a row.
        image: The stored image.
        label: Number of the true class, or its name if the table numbers names.
        key: Changes when the image changes, such as a digest or modification time; identifies images scored before.
    """

    path: str = schema.PATH
    image: str = schema.IMAGE
    label: str = schema.LABEL
    key: str = schema.CONTENT_HASH

    def check(self, table: str, types: Mapping[str, str]) -> None:
        """Checks that a table has what scoring needs.

        Args:
            table: The table, for the message.
            types: Delta's types of its columns.

        Raises:
            NotAnImageTableError: If it lacks the path, the image or a named column, or the image is not binary.
        """
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
    """One version of an image table, or one split of it.

    Attributes:
        spark: The session that reads it.
        snapshot: The version, with the data files of the split only.
        split: The split, or None for all rows.
        columns: Names of the columns, if they differ from lakelens' own.
    """

    spark: SparkSession
    snapshot: Snapshot
    split: str | None = None
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

    @property
    def mean_row_bytes(self) -> float | None:
        """Stored bytes per row; None if the log does not have the number of rows."""
        rows = self.snapshot.rows
        return float(self.snapshot.files.sizes.sum() / rows) if rows else None

    def labels(self) -> dict[str, int]:
        """Gives the class numbers by name from the table's ledger or properties; empty if they have none.

        Raises:
            NotAnImageTableError: If the property is damaged.
        """
        return stated_labels(self.snapshot.table, self.version, self.snapshot.configuration)

    def row_count(self) -> int:
        """Counts the rows, from the log if it has their number."""
        return self.keys().count() if self.snapshot.rows is None else self.snapshot.rows

    def row_groups(self, files: Sequence[str]) -> int | None:
        """Estimates how many parts Spark can read in parallel, for row groups of lakelens' size.

        Args:
            files: Data files, as `keys` names them; None for `ALL_FILES`.
        """
        places = [place for file in files if (place := self._place(file)) is not None]
        sizes = self.snapshot.files.sizes[places]
        return int(np.maximum(1, -(-sizes // schema.ROW_GROUP_BYTES)).sum()) if places else None

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

    def keys(self) -> DataFrame:
        """Reads what identifies and describes each row: the columns copied to the predictions.

        The column `FILE` names the row's data file. It is `ALL_FILES` if deletion vectors or column mapping
        prevent reading files one by one.
        """
        from pyspark.sql import functions

        rows = self._of_split(read_table(self.spark, self.location, self.version))
        is_plain = not self.snapshot.files.deleted and not self.snapshot.is_mapped
        file = functions.col("_metadata.file_path") if is_plain else functions.lit(ALL_FILES)
        return rows.select(*self._columns(rows, _PASSED_TYPES), file.alias(FILE))

    def knows(self, file: str) -> bool:
        """Returns whether the log has a data file under the name that `keys` gives it."""
        return self._place(file) is not None

    def images(self, more: Sequence[Column] = ()) -> DataFrame:
        """Reads the columns of `keys` without the file, and the stored image.

        Args:
            more: More columns of the table.
        """
        return self._images(read_table(self.spark, self.location, self.version), more)

    def images_of(self, files: Collection[str]) -> DataFrame:
        """Reads the rows of some data files as `images` does. Opens only these files, which Delta cannot do.

        Args:
            files: Data files, as `keys` names them; or `ALL_FILES`.
        """
        from pyspark.sql import functions

        rows = read_table(self.spark, self.location, self.version)
        if ALL_FILES in files:
            return self._images(rows)
        wanted = {self._source_name(name) for name in (*_PASSED_TYPES, *_STORED_TYPES, schema.SPLIT)}
        fields = [one for one in rows.schema.fields if one.name in wanted]
        partitions = [one for one in fields if one.name in self.snapshot.files.partitions]
        stored = type(rows.schema)([one for one in fields if one not in partitions])
        # Files whose folders hold the same values of the partition columns are read together.
        groups: dict[tuple[str | None, ...], list[str]] = {}
        for place in map(self._place, files):
            if place is None:
                raise ValueError("the log has no such file")
            held = self.snapshot.files.partition_values(place)
            groups.setdefault(tuple(held[one.name] for one in partitions), []).append(
                self.snapshot.file_location(place)
            )
        reader = self.spark.read.schema(stored).option("recursiveFileLookup", "true").option("__globPaths__", "false")
        parts = []
        for values, paths in groups.items():
            part = reader.parquet(*paths)
            for one, value in zip(partitions, values, strict=True):
                part = part.withColumn(one.name, functions.lit(value).cast(one.dataType))
            parts.append(part)
        return self._images(functools.reduce(lambda whole, part: whole.unionByName(part), parts))

    @contextlib.contextmanager
    def protected(self, digest: str) -> Iterator[Callable[[], None]]:
        """Protects this version from `ImageTable.vacuum`; no longer if the body raises or the process ends.

        Each running call is tracked under a separate name, so that a failing concurrent call does not remove it. Calls
        that succeed leave one name for all.

        Yields:
            A function to call from time to time while the run continues.
        """
        scored = f"score-{digest[:12]}-{self.version}"
        running = f"{scored}-{uuid.uuid4().hex[:12]}"
        with using(replace(self.snapshot.table, version=None), self.version, running, kept_as=scored) as renew:
            yield renew

    @cached_property
    def _places(self) -> dict[str, int]:
        return {self.snapshot.file_location(place): place for place in range(len(self.snapshot.files))}

    def _place(self, file: str) -> int | None:
        # Spark writes paths as URIs.
        return self._places.get(absolute(file) if file.startswith("file:") else unquote(file))

    def _images(self, rows: DataFrame, more: Sequence[Column] = ()) -> DataFrame:
        rows = self._of_split(rows)
        present = {name: kind for name, kind in _STORED_TYPES.items() if self._source_name(name) in rows.columns}
        return rows.select(*self._columns(rows, _PASSED_TYPES | present), *more)

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
        return functions.coalesce(functions.create_map(*pairs)[name], number)


def check_by_log(table: Table, split: str | None, columns: SourceColumns) -> Snapshot | None:
    """Checks table, version, columns and split from the log, before a session exists.

    Returns:
        The version; None for a catalog name, which only Spark can resolve, so that nothing was checked.

    Raises:
        TableError: Its subclasses, if table or version does not exist or cannot be read.
        NotAnImageTableError: If it lacks a column that scoring needs.
        InvalidArgumentError: If the split does not exist.
    """
    if table.is_name:
        return None
    snapshot = table.snapshot()
    name = f"{snapshot.location}@{snapshot.version}"
    columns.check(name, snapshot.schema)
    if split is not None:
        _require_split_column(name, split, snapshot.schema)
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
    """Resolves a table and a version for scoring; `snapshot` is that version if `check_by_log` has read it already.

    Raises:
        LakelensError: As `check_by_log`.
    """
    columns = columns or SourceColumns()
    if not is_delta_table(spark, table.location):
        raise NotADeltaTableError(f"{table.location} holds no Delta table; check the path, or ingest into it first")
    if snapshot is None:
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


def _require_split_column(name: str, split: str, columns: Collection[str]) -> None:
    if schema.SPLIT not in columns:
        raise InvalidArgumentError(f"split={split!r}: {name} has no column {schema.SPLIT!r}")


def _require_split(name: str, split: str, known: Collection[str | None]) -> None:
    if split not in known:
        present = ", ".join(sorted(map(str, known))) or "no rows"
        raise InvalidArgumentError(f"split={split!r}: {name} has no such split; it has {present}")
