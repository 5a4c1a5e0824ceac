"""Lists folders: local and mounted ones by the Python workers, any other URI through Spark's `binaryFile`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import EmptySourceError, SourceNotFoundError
from . import schema
from .layouts import CLASS_FOLDERS, FOLDER_LAYOUTS, check_class_folders, class_of_parts, number_of_folder
from .listing import FOLDER_LISTING_DDL, IGNORED, LABEL_RANK, folder_batch
from .walk import (
    HIDDEN,
    HIDDEN_BY_SPARK,
    IMAGE_SUFFIXES,
    NO_CLASS_FOLDER,
    NOT_AN_IMAGE_NAME,
    Entry,
    has_suffix,
    is_hidden,
    local_uri,
    visit,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_LISTING_ROWS = 10_000


@dataclass(frozen=True)
class Wanted:
    """What a layout looks for in a folder.

    Attributes:
        layout: Its name.
        suffixes: What the names of its files end with.
    """

    layout: str
    suffixes: frozenset[str] = IMAGE_SUFFIXES

    @property
    def has_classes(self) -> bool:
        """Whether folders name classes."""
        return self.layout in FOLDER_LAYOUTS


def list_local_folder(spark: SparkSession, root: str, wanted: Wanted) -> tuple[str, DataFrame]:
    """Lists a folder that the workers can open.

    Returns:
        The folder's URI and rows of `FOLDER_LISTING_DDL`.

    Raises:
        SourceNotFoundError: If the folder does not exist, is a file, or cannot be listed.
        EmptySourceError: If it has no class folder and the layout wants some.
        InvalidArgumentError: If two folders name the same class.
    """
    root_bytes = os.fsencode(root)
    top = spark.range(0, 1, 1, 1).mapInArrow(_TopLevel(root_bytes).list_top, "name BINARY, kind STRING").collect()
    kinds = {kind for _, kind in top}
    if "missing" in kinds:
        raise SourceNotFoundError(f"{root} does not exist (as the executors see it); give an existing folder or URI")
    if "file" in kinds:
        raise SourceNotFoundError(f"{root} is a file; layout {wanted.layout!r} wants a folder")
    if "unreadable" in kinds:
        raise SourceNotFoundError(f"{root} cannot be listed: permission denied; let the executors' user read it")
    folders = sorted(bytes(name) for name, kind in top if kind == "folder")
    if wanted.has_classes and not folders:
        raise EmptySourceError(
            f"{root} has no class folder, which layout {wanted.layout!r} wants: put the images of each class into a "
            "folder of its own, as in cat/1.jpg"
        )
    if wanted.layout == CLASS_FOLDERS:
        check_class_folders([name.decode("utf-8", "replace") for name in folders])
    names = (*folders, *(bytes(name) for name, kind in top if kind == "other"))
    tasks = max(1, min(len(names), 2 * spark.sparkContext.defaultParallelism))
    task = _FolderTask(root_bytes, names, tasks, wanted)
    return local_uri(root_bytes), spark.range(0, tasks, 1, tasks).mapInArrow(task.list_share, FOLDER_LISTING_DDL)


def list_folder_by_spark(spark: SparkSession, root: str, wanted: Wanted) -> tuple[str, DataFrame]:
    """Lists a folder of any file system that Spark reads.

    Spark's own reader passes over files whose names start with `_`; they are listed, and passed over with a reason.

    Returns:
        The folder's full URI and rows of `FOLDER_LISTING_DDL`.

    Raises:
        SourceNotFoundError: If Hadoop finds no folder there.
    """
    from pyspark.sql import functions as F

    qualified = qualified_folder(spark, root, wanted.layout)
    below = F.substring("path", len(qualified) + 2, 1_000_000)
    rule = _PathRule(wanted, by_spark=True)
    named = _all_files(spark, qualified).select(
        F.col("path").alias(schema.PATH),
        F.col("length").alias(schema.SOURCE_LENGTH),
        F.col("modified").alias(schema.SOURCE_MODIFIED),
        F.udf(rule.class_of, "string")(below).alias(schema.LABEL_NAME),
        F.udf(rule.rank_of, "int")(below).alias(LABEL_RANK),
        F.udf(rule.ignored_of, "string")(below).alias(IGNORED),
    )
    return qualified, named


def _all_files(spark: SparkSession, root: str) -> DataFrame:
    """Lists path, length and time of change of every file below a folder, by all executors."""
    from pyspark.sql import DataFrame as SparkDataFrame
    from pyspark.sql import functions as F

    jvm: Any = spark._jvm
    try:
        no_filter = getattr(getattr(jvm.scala.collection.immutable, "Set$EmptySet$"), "MODULE$")  # hides no name
        settings = jvm.org.apache.spark.util.SerializableConfiguration(
            spark._jsparkSession.sessionState().newHadoopConf()
        )
        folders = jvm.java.util.ArrayList()
        folders.add(root)
        found = jvm.org.apache.spark.sql.delta.util.DeltaFileOperations.recursiveListDirs(
            spark._jsparkSession,
            jvm.org.apache.spark.api.python.PythonUtils.toSeq(folders),
            spark.sparkContext._jsc.broadcast(settings),
            no_filter,
            no_filter,
            jvm.scala.Option.empty(),
            True,
        )
        listed = SparkDataFrame(found.toDF(), spark).where("NOT isDir")
        return listed.select("path", "length", F.timestamp_millis("modificationTime").alias("modified"))
    except (AttributeError, TypeError):  # Delta's classes have another name on Databricks
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(root)
        return files.select("path", "length", F.col("modificationTime").alias("modified"))


def qualified_folder(spark: SparkSession, root: str, layout: str) -> str:
    """Asks Hadoop for the full URI of a folder.

    Raises:
        SourceNotFoundError: If Hadoop finds no folder there.
    """
    jvm: Any = spark._jvm
    try:
        path = jvm.org.apache.hadoop.fs.Path(root)
        file_system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        qualified = file_system.makeQualified(path)
        status = file_system.getFileStatus(qualified)
    except Exception as error:  # py4j wraps every Hadoop exception in one type, whose text says which it was
        text = str(getattr(error, "java_exception", None) or error)
        raise SourceNotFoundError(f"{root} cannot be listed through Spark: {text.splitlines()[0]}") from error
    if not status.isDirectory():
        raise SourceNotFoundError(f"{root} is a file; layout {layout!r} wants a folder")
    return str(qualified.toString())


@dataclass(frozen=True)
class _PathRule:
    """What a path below the source folder says of its file."""

    wanted: Wanted
    by_spark: bool = False

    def class_of(self, path: str) -> str | None:
        return class_of_parts(path.split("/"), self.wanted.layout) if self.wanted.has_classes else None

    def rank_of(self, path: str) -> int | None:
        folder, separator, _ = path.partition("/")
        return number_of_folder(folder) if separator and self.wanted.has_classes else None

    def ignored_of(self, path: str) -> str | None:
        if self.by_spark and any(is_hidden(part) for part in path.split("/")):
            return HIDDEN
        # Annotation files of this suffix are copied rather than read by Spark, and some tools write just such names.
        if self.by_spark and path.rpartition("/")[2].startswith("_") and not path.lower().endswith(".json"):
            return HIDDEN_BY_SPARK if has_suffix(path, self.wanted.suffixes) else NOT_AN_IMAGE_NAME
        if not has_suffix(path.rpartition("/")[2], self.wanted.suffixes):
            return NOT_AN_IMAGE_NAME
        return NO_CLASS_FOLDER if self.wanted.has_classes and self.class_of(path) is None else None


@dataclass(frozen=True)
class _FolderTask:
    """What a task needs to list its share of the top-level names."""

    root: bytes
    names: tuple[bytes, ...]
    tasks: int
    wanted: Wanted

    def list_share(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[dict[str, Any]] = []
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for entry in self._entries(task):
                    rows.append(self._row(entry))
                    if len(rows) == _LISTING_ROWS:
                        yield folder_batch(rows)
                        rows = []
        if rows:
            yield folder_batch(rows)

    def _entries(self, task: int) -> Iterator[Entry]:
        for name in self.names[task :: self.tasks]:
            yield from visit(self.root.rstrip(b"/") + b"/" + name, (name,), suffixes=self.wanted.suffixes)

    def _row(self, entry: Entry) -> dict[str, Any]:
        rule = _PathRule(self.wanted)
        below = "/".join(part.decode("utf-8", "replace") for part in entry.parts)
        return {
            schema.PATH: local_uri(entry.path),
            schema.SOURCE_LENGTH: entry.length,
            schema.SOURCE_MODIFIED: entry.modified_ms * 1000,
            schema.LABEL_NAME: rule.class_of(below),
            LABEL_RANK: rule.rank_of(below),
            IGNORED: entry.ignored or rule.ignored_of(below),
        }


@dataclass(frozen=True)
class _TopLevel:
    """Lists the source folder itself, where the executors see it."""

    root: bytes

    def list_top(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            pass
        rows = self._top()
        for start in range(0, len(rows), _LISTING_ROWS):
            part = rows[start : start + _LISTING_ROWS]
            columns = [pa.array([name for name, _ in part], pa.binary()), pa.array([kind for _, kind in part])]
            yield pa.RecordBatch.from_arrays(columns, ["name", "kind"])

    def _top(self) -> list[tuple[bytes, str]]:
        try:
            with os.scandir(self.root) as entries:
                return [(entry.name, "folder" if _is_folder(entry) else "other") for entry in entries]
        except FileNotFoundError:
            return [(self.root, "missing")]
        except NotADirectoryError:
            return [(self.root, "file")]
        except OSError:
            return [(self.root, "unreadable")]


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir() and not entry.name.startswith(b".")
    except OSError:
        return False
