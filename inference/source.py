"""The side of a scoring run that is read: one version of an image table, or one split of it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InvalidArgumentError, NotADeltaTableError, NotAnImageTableError, UnsupportedTableFeatureError
from ..etl import pins, schema
from ..etl.catalog import is_delta_table, path_of, read_table, sql_name
from ..etl.snapshot import DataFiles, Snapshot, open_snapshot
from ..locations import absolute
from .predictions import PASSED_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What the predictor reads of a row; all but the image may be missing.
_STORED_TYPES = {schema.IMAGE: "binary", schema.FORMAT: "string", schema.HEIGHT: "int", schema.WIDTH: "int"}
_PASSED_TYPES = {name: kind.lower() for name, kind in (column.split() for column in PASSED_DDL.split(", "))}


@dataclass(frozen=True)
class SourceColumns:
    """Names of the columns of an image table that need not be called as lakelens calls them."""

    path: str = schema.PATH
    image: str = schema.IMAGE
    label: str = schema.LABEL


@dataclass(frozen=True)
class ScoredTable:
    """One version of an image table, or one split of it.

    Attributes:
        location: Absolute path or URI.
        version: Its number.
        split: The split, or None for all rows.
        files: The data files that hold the rows; None when only Spark can tell.
        columns: Names of the columns where they are not lakelens's own.
        storage_options: Access to an object store without Spark.
    """

    spark: SparkSession
    location: str
    version: int
    split: str | None
    files: DataFiles | None
    columns: SourceColumns = field(default_factory=SourceColumns)
    storage_options: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        """The table's location and version."""
        return f"{self.location}@{self.version}"

    @property
    def mean_row_bytes(self) -> float | None:
        """Stored bytes per row; None if the log does not say how many rows there are."""
        files = self.files
        if files is None or len(files) == 0 or bool((files.rows < 0).any()) or not files.rows.sum():
            return None
        return float(files.sizes.sum() / files.rows.sum())

    @property
    def row_groups(self) -> int | None:
        """About how many pieces Spark can read at the same time, when row groups are of lakelens's size."""
        if self.files is None:
            return None
        return int(np.maximum(1, -(-self.files.sizes // schema.ROW_GROUP_BYTES)).sum())

    def keys(self) -> DataFrame:
        """Reads what identifies and describes each row: the columns that pass into the predictions."""
        rows = self._read()
        return rows.select(*(self._column(rows, name, kind) for name, kind in _PASSED_TYPES.items()))

    def images(self) -> DataFrame:
        """Reads `keys` and the stored image; nothing else."""
        rows = self._read()
        present = {name: kind for name, kind in _STORED_TYPES.items() if self._source_name(name) in rows.columns}
        return rows.select(*(self._column(rows, name, kind) for name, kind in (_PASSED_TYPES | present).items()))

    @contextlib.contextmanager
    def protected(self, digest: str) -> Iterator[None]:
        """Keeps `ImageTable.vacuum` off this version from now on; no longer if the body raises.

        While it runs, each call is tracked under a name of its own, which the failure of another at the same time does
        not take away. Those that succeed leave one name for all; a killed one leaves its own, until it is untracked.
        """
        scored = f"score-{digest[:12]}-{self.version}"
        running = f"{scored}-{uuid.uuid4().hex[:12]}"
        options = self.storage_options
        with pins.tracking(self.location, self.version, running, kept_as=scored, storage_options=options):
            yield

    def check(self) -> None:
        """Checks that the table has what scoring needs.

        Raises:
            NotAnImageTableError: If it lacks the path or the image, or the image is not binary.
        """
        types = dict(self._read().dtypes)
        for wanted in (self.columns.path, self.columns.image):
            if wanted not in types:
                raise NotAnImageTableError(
                    f"{self.name} has no column {wanted!r}; its columns: {', '.join(types)}. Name the columns: "
                    "path_column=..., image_column=..."
                )
        if types[self.columns.image] != "binary":
            raise NotAnImageTableError(
                f"{self.name}: column {self.columns.image!r} is of type {types[self.columns.image]}; images are binary"
            )

    def _read(self) -> DataFrame:
        from pyspark.sql import functions

        rows = read_table(self.spark, self.location, self.version)
        return rows if self.split is None else rows.where(functions.col(schema.SPLIT) == self.split)

    def _source_name(self, name: str) -> str:
        return {
            schema.PATH: self.columns.path,
            schema.IMAGE: self.columns.image,
            schema.LABEL: self.columns.label,
        }.get(name, name)

    def _column(self, rows: DataFrame, name: str, kind: str) -> object:
        from pyspark.sql import functions

        source = self._source_name(name)
        column = functions.col(f"`{source}`") if source in rows.columns else functions.lit(None)
        return column.cast(kind).alias(name)


def open_scored_table(
    spark: SparkSession,
    table: str | Path,
    version: int | str | datetime | None,
    split: str | None,
    *,
    columns: SourceColumns | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ScoredTable:
    """Resolves a table and a version for scoring.

    Raises:
        NotADeltaTableError: If there is no Delta table.
        VersionNotFoundError: If it has no such version.
        NotAnImageTableError: If it lacks a column that scoring needs.
        InvalidArgumentError: If it has no such split.
    """
    name = absolute(table)
    if not is_delta_table(spark, name):
        raise NotADeltaTableError(f"{name} holds no Delta table; check the path, or ingest into it first")
    location = absolute(path_of(spark, name)).rstrip("/")
    try:
        snapshot = open_snapshot(location, version, storage_options)
    except UnsupportedTableFeatureError:
        # Spark reads what the log's files alone do not show; only sizes and row counts stay unknown.
        number, files = _version_by_spark(spark, location, version, storage_options), None
    else:
        number, files = snapshot.version, _files_of_split(snapshot, split)
    source = ScoredTable(spark, location, number, split, files, columns or SourceColumns(), storage_options)
    source.check()
    _check_split(source)
    return source


def _files_of_split(snapshot: Snapshot, split: str | None) -> DataFiles | None:
    if split is None:
        return snapshot.files
    if schema.SPLIT not in snapshot.partition_columns:
        return None
    partition = snapshot.files.partitions[schema.SPLIT]
    wanted = [file for file in range(len(snapshot.files)) if partition.at(file) == split]
    return snapshot.files.take(np.array(wanted, dtype=np.int64))


def _check_split(source: ScoredTable) -> None:
    if source.split is None:
        return
    rows = read_table(source.spark, source.location, source.version)
    if schema.SPLIT not in rows.columns:
        raise InvalidArgumentError(f"split={source.split!r}: {source.name} has no column {schema.SPLIT!r}")
    if source.files is not None and len(source.files) > 0:
        return
    known = sorted(str(row[0]) for row in rows.select(schema.SPLIT).distinct().collect())
    if source.split not in known:
        raise InvalidArgumentError(
            f"split={source.split!r}: {source.name} has no such split; it has {', '.join(known) or 'no rows'}"
        )


def _version_by_spark(
    spark: SparkSession,
    location: str,
    version: int | str | datetime | None,
    storage_options: Mapping[str, str] | None,
) -> int:
    """Resolves a number or the latest version where the log cannot be read without Spark."""
    if isinstance(version, int):
        return version
    if version is None or (isinstance(version, str) and version.strip().lower() == "latest"):
        return int(spark.sql(f"DESCRIBE HISTORY {sql_name(location)} LIMIT 1").collect()[0]["version"])
    if isinstance(version, str) and version.strip().isdigit():
        return int(version)
    pinned = pins.version_of_pin(location, version.strip(), storage_options) if isinstance(version, str) else None
    if pinned is not None:
        return pinned
    raise UnsupportedTableFeatureError(
        f"{location}: version {version!r} of a table with deletion vectors or column mapping; give the version's number"
    )
