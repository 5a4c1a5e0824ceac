"""The side of a scoring run that is read: one version of an image table, or one split of it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np

from ...errors import InvalidArgumentError, NotADeltaTableError, NotAnImageTableError, UnsupportedTableFeatureError
from ...etl.log.snapshot import ROWS_UNKNOWN, DataFiles, Snapshot, identify, locate, open_snapshot
from ...etl.model import schema
from ...etl.spark.catalog import is_delta_table, path_of, read_table, sql_name
from ...etl.versions.classes import stated_labels
from ...ledger.pins import pinned_version
from ...ledger.uses import using
from ...locations import absolute, is_table_name
from ...table import Table
from ...training.feed.plan_builder import require_images
from .parts import Piece
from .predictions import PASSED_DDL

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FILE = "_file"

# What the predictor reads of a row; all but the image may be missing.
_STORED_TYPES = {schema.IMAGE: "binary", schema.FORMAT: "string", schema.HEIGHT: "int", schema.WIDTH: "int"}
_PASSED_TYPES = {name: kind.lower() for name, kind in (column.split() for column in PASSED_DDL.split(", "))}


@dataclass(frozen=True)
class SourceColumns:
    """Names of the columns of an image table that need not be called as lakelens calls them.

    Attributes:
        path: Names a row.
        image: The stored image.
        label: Number of the true class, or its name if the table numbers names.
        key: Differs where the image does, as a digest or a time of change; tells images that were scored before.
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
            NotAnImageTableError: If it lacks the path, the image or a column that was named, or the image is no binary.
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
        location: Absolute path or URI.
        version: Its number.
        split: The split, or None for all rows.
        files: The data files that hold the rows; None when only Spark can tell.
        columns: Names of the columns where they are not lakelens's own.
        storage_options: Access to an object store without Spark.
        types: Delta's types of the columns; None when only Spark can tell.
        configuration: The table's properties at that version.
        table_id: The table's own id, which a table that is made anew in its place does not share.
    """

    spark: SparkSession
    location: str
    version: int
    split: str | None
    files: DataFiles | None
    columns: SourceColumns = field(default_factory=SourceColumns)
    storage_options: Mapping[str, str] | None = None
    types: Mapping[str, str] | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    table_id: str = ""

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
    def rows(self) -> int | None:
        """Rows by the log; None if it does not say it."""
        files = self.files
        return None if files is None or bool((files.rows < 0).any()) else int(files.rows.sum())

    @property
    def rows_by_file(self) -> dict[str, int]:
        """Rows of each data file by the log, by the file's location."""
        files = self.files
        return {} if files is None else {place: int(files.rows[i]) for place, i in self._places.items()}

    def row_groups(self, pieces: Sequence[Piece] | None) -> int | None:
        """About how many parts Spark can read at the same time, when row groups are of lakelens's size."""
        if self.files is None or pieces is None or not pieces[0].file:
            return None
        sizes = self.files.sizes[[self._places[file] for file in {piece.file for piece in pieces}]]
        return int(np.maximum(1, -(-sizes // schema.ROW_GROUP_BYTES)).sum())

    def keys(self) -> DataFrame:
        """Reads what identifies and describes each row: the columns that pass into the predictions.

        Where the data files are known, the column `FILE` names that of the row, as `place` reads it.
        """
        rows = self._of_split(read_table(self.spark, self.location, self.version))
        columns = self._columns(rows, _PASSED_TYPES)
        if self.files is not None:
            from pyspark.sql import functions

            columns.append(functions.col("_metadata.file_path").alias(FILE))
        return rows.select(*columns)

    def place(self, file: str) -> str | None:
        """Gives the location of a data file by what `keys` calls it; None if the log has no such file."""
        place = absolute(file) if file.startswith("file:") else unquote(file)
        return place if place in self._places else None

    def images(self, pieces: Sequence[Piece] | None = None, more: Sequence[Column] = ()) -> DataFrame:
        """Reads the columns of `keys` and the stored image; nothing else.

        Args:
            pieces: Only these rows; None reads all. Only their files are opened then, which Delta has no way to say.
            more: Further columns of the table; only without `pieces`.
        """
        rows = read_table(self.spark, self.location, self.version)
        if pieces is not None:
            rows = self._read_files(pieces, rows) if pieces[0].file else self._of_shares(pieces, rows)
        rows = self._of_split(rows)
        present = {name: kind for name, kind in _STORED_TYPES.items() if self._source_name(name) in rows.columns}
        return rows.select(*self._columns(rows, _PASSED_TYPES | present), *more)

    def _read_files(self, pieces: Sequence[Piece], rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        if self.files is None:
            raise ValueError("the files of this version are not known")
        wanted = {self._source_name(name) for name in _PASSED_TYPES | _STORED_TYPES}
        fields = [one for one in rows.schema.fields if one.name in wanted]
        partitions = [one for one in fields if one.name in self.files.partitions]
        stored = type(rows.schema)([one for one in fields if one not in partitions])
        # The files that are read whole go together as far as the columns agree that the folders hold; others are alone.
        groups: dict[tuple[str | None, ...], list[Piece]] = {}
        for piece in pieces:
            held = self.files.partition_values(self._places[piece.file])
            alone = piece.file if piece.shares > 1 else None
            groups.setdefault((alone, *(held[one.name] for one in partitions)), []).append(piece)
        reader = self.spark.read.schema(stored).option("recursiveFileLookup", "true").option("__globPaths__", "false")
        parts = []
        for (_, *values), group in groups.items():
            part = reader.parquet(*dict.fromkeys(piece.file for piece in group))
            for one, value in zip(partitions, values, strict=True):
                part = part.withColumn(one.name, functions.lit(value).cast(one.dataType))
            parts.append(self._of_shares(group, part))
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.unionByName(part)
        return whole

    def _of_shares(self, pieces: Sequence[Piece], rows: DataFrame) -> DataFrame:
        """Keeps of the rows of one file, or of the version, those of some shares."""
        from pyspark.sql import functions

        if len(pieces) >= pieces[0].shares:
            return rows
        share = functions.expr(f"pmod(xxhash64(`{self.columns.path}`), {pieces[0].shares})")
        return rows.where(share.isin([piece.share for piece in pieces]))

    @cached_property
    def _places(self) -> dict[str, int]:
        """The places of the data files in `files`, by their locations."""
        paths = () if self.files is None else self.files.paths
        return {locate(self.location, path): i for i, path in enumerate(paths)}

    @contextlib.contextmanager
    def protected(self, digest: str) -> Iterator[Callable[[], None]]:
        """Keeps `ImageTable.vacuum` off this version from now on; no longer if the body raises or the process ends.

        While it runs, each call is tracked under a name of its own, which the failure of another at the same time does
        not take away. Those that succeed leave one name for all.

        Yields:
            A function to be called now and then, as long as it runs.
        """
        scored = f"score-{digest[:12]}-{self.version}"
        running = f"{scored}-{uuid.uuid4().hex[:12]}"
        table = Table.of(self.location, None, self.storage_options)
        with using(table, self.version, running, kept_as=scored) as renew:
            yield renew

    @property
    def has_key(self) -> bool:
        """Whether a column tells that an image is the one that another version has under its path."""
        return self.columns.key in self.column_types

    @cached_property
    def column_types(self) -> Mapping[str, str]:
        """Delta's types of the columns; Spark tells them where the log cannot be read without it."""
        return self.types or dict(read_table(self.spark, self.location, self.version).dtypes)

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
        has_names = self.column_types.get(self.columns.label) == "string"
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
        """Gives the number of a class by its name; else the number that the text is, or null."""
        from pyspark.sql import functions

        number = functions.when(name.rlike("^[0-9]{1,9}$"), name.cast("int"))
        table = Table.of(self.location, None, self.storage_options)
        labels = stated_labels(table, self.version, self.configuration)
        if not labels:
            return number
        pairs = [functions.lit(value) for pair in labels.items() for value in pair]
        return functions.coalesce(functions.create_map(*pairs)[name], number)


def check_by_log(
    table: str | Path,
    version: int | str | datetime | None,
    split: str | None,
    columns: SourceColumns,
    storage_options: Mapping[str, str] | None = None,
) -> Snapshot | None:
    """Checks table, version, columns and split by the log, before there is a session.

    Returns:
        The version; None where only Spark can read it, or the table is one of the catalog, so that nothing was checked.

    Raises:
        UsageError: As `open_scored_table`.
    """
    if is_table_name(absolute(table)):
        return None
    try:
        snapshot = open_snapshot(table, version, storage_options)
    except UnsupportedTableFeatureError:
        return None
    name = f"{snapshot.location}@{snapshot.version}"
    columns.check(name, snapshot.schema)
    if split is not None:
        _require_split_column(name, split, snapshot.schema)
        if schema.SPLIT in snapshot.files.partitions:
            _require_split(name, split, snapshot.files.partitions[schema.SPLIT].values)
    return snapshot


def open_scored_table(
    spark: SparkSession,
    table: str | Path,
    version: int | str | datetime | None,
    split: str | None,
    *,
    columns: SourceColumns | None = None,
    storage_options: Mapping[str, str] | None = None,
    snapshot: Snapshot | None = None,
) -> ScoredTable:
    """Resolves a table and a version for scoring; `snapshot` is that version where `check_by_log` has read it already.

    Raises:
        NotADeltaTableError: If there is no Delta table.
        VersionNotFoundError: If it has no such version.
        NotAnImageTableError: If it lacks a column that scoring needs.
        InvalidArgumentError: If it has no such split.
    """
    columns = columns or SourceColumns()
    name = absolute(table)
    if not is_delta_table(spark, name):
        raise NotADeltaTableError(f"{name} holds no Delta table; check the path, or ingest into it first")
    location = absolute(path_of(spark, name)).rstrip("/")
    try:
        snapshot = snapshot or open_snapshot(location, version, storage_options)
    except UnsupportedTableFeatureError:
        # Spark reads what the log's files alone do not show; only sizes and row counts stay unknown.
        number = _version_by_spark(spark, location, version, storage_options)
        source = ScoredTable(spark, location, number, split, None, columns, storage_options)
        with contextlib.suppress(UnsupportedTableFeatureError):
            identity = identify(location, number, storage_options)
            source = replace(source, configuration=identity.configuration, table_id=identity.table_id)
    else:
        source = ScoredTable(
            spark,
            location,
            snapshot.version,
            split,
            files_of_split(snapshot, split),
            columns,
            storage_options,
            snapshot.schema,
            snapshot.configuration,
            snapshot.table_id,
        )
    columns.check(source.name, source.column_types)
    _check_split(source)
    return source


def files_of_split(snapshot: Snapshot, split: str | None) -> DataFiles:
    """Gives the data files of a version that hold a split; without their row counts where other splits are in them."""
    if split is None:
        return snapshot.files
    if schema.SPLIT not in snapshot.partition_columns:
        # Which of a file's rows are of the split is not in the log.
        return replace(snapshot.files, rows=np.full(len(snapshot.files), ROWS_UNKNOWN, dtype=np.int64))
    partition = snapshot.files.partitions[schema.SPLIT]
    wanted = [file for file in range(len(snapshot.files)) if partition.at(file) == split]
    return snapshot.files.take(np.array(wanted, dtype=np.int64))


def _check_split(source: ScoredTable) -> None:
    if source.split is None:
        return
    if source.files is not None and len(source.files) > 0 and schema.SPLIT in source.files.partitions:
        return
    _require_split_column(source.name, source.split, source.column_types)
    rows = read_table(source.spark, source.location, source.version)
    _require_split(source.name, source.split, [row[0] for row in rows.select(schema.SPLIT).distinct().collect()])


def _require_split_column(name: str, split: str, columns: Collection[str]) -> None:
    if schema.SPLIT not in columns:
        raise InvalidArgumentError(f"split={split!r}: {name} has no column {schema.SPLIT!r}")


def _require_split(name: str, split: str, known: Collection[str | None]) -> None:
    if split not in known:
        present = ", ".join(sorted(map(str, known))) or "no rows"
        raise InvalidArgumentError(f"split={split!r}: {name} has no such split; it has {present}")


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
    table = Table.of(location, None, storage_options)
    pinned = pinned_version(table, version.strip()) if isinstance(version, str) else None
    if pinned is not None:
        return pinned
    raise UnsupportedTableFeatureError(
        f"{location}: version {version!r} of a table with deletion vectors or column mapping; give the version's number"
    )
