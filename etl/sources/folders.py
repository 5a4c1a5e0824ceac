"""Lists folders: local and mounted ones by the Python workers, any other URI through Spark's `binaryFile`."""

from __future__ import annotations

import functools
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import SessionError, SourceNotFoundError, StoreError, UsageError
from ...locations import has_scheme
from ...spark.port import forget, is_connect, java_broadcast, java_session, jvm, keep, parallelism
from ...spark.workers import map_in_arrow
from ...stores.clients import lacks_bucket, no_bucket
from ..files import (
    HIDDEN,
    HIDDEN_BY_SPARK,
    NOT_AN_IMAGE_NAME,
    ListedFile,
    Wanted,
    has_suffix,
    is_hidden,
    list_below,
    list_top,
    local_uri,
)
from ..model import schema
from ..spark.catalog import files_by_reader, hadoop_path
from .contents import read_contents
from .source import FOLDER_LISTING, IGNORED, LABEL_RANK, Listing, Source, completed, folder_batch, refusal, sight

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from .source import ReadContents

_LISTING_ROWS = 10_000


@dataclass(frozen=True)
class FolderListing:
    """The files of a folder."""

    root: str  # The folder's URI
    files: DataFrame  # Rows of `FOLDER_LISTING`
    read_contents: ReadContents | None = None  # How the bytes are read, as `Listing.read_contents`
    cached: tuple[DataFrame, ...] = ()  # What Spark keeps for it
    keeps_names: bool | None = None  # As `Listing.keeps_names`


def list_class_folders(spark: SparkSession, source: Source, *, keep_names: bool | None) -> Listing:
    """Lists a folder whose folders name the classes; raises as `list_folder`."""
    folder = list_folder(spark, source.folder, Wanted(source.layout, keep_names=keep_names))
    files = completed(folder.files)
    return Listing(files, folder.root, folder.read_contents, cached=folder.cached, keeps_names=folder.keeps_names)


def list_folder(spark: SparkSession, location: str, wanted: Wanted) -> FolderListing:
    """Lists a folder: a local or mounted one by the workers, another one through Spark.

    What a worker refuses, a missing folder or two folders of one class, is a row whose reason is a `refusal`.
    """
    list_by = list_folder_by_spark if has_scheme(location) else list_local_folder
    return list_by(spark, location, wanted)


def list_local_folder(spark: SparkSession, root: str, wanted: Wanted) -> FolderListing:
    """Lists a folder that the workers can open: the driver may have another folder, or none, of that path."""
    root_bytes, tasks = os.fsencode(root), 2 * parallelism(spark)
    task = functools.partial(list_share, root=root_bytes, tasks=tasks, wanted=wanted)
    files = map_in_arrow(spark.range(0, tasks, 1, tasks), task, schema.ddl_of(FOLDER_LISTING))
    return FolderListing(local_uri(root_bytes), files)


def list_folder_by_spark(spark: SparkSession, root: str, wanted: Wanted) -> FolderListing:
    """Lists a folder of any file system that Spark reads.

    Spark's own reader skips files whose names start with `_`; here they are listed and skipped with a reason.
    """
    from pyspark.sql import functions as F

    qualified = qualified_folder(spark, root, wanted.layout)
    files = _all_files(spark, qualified).select(
        F.col("path").alias(schema.PATH),
        F.col("length").alias(schema.SOURCE_LENGTH),
        F.col("modified").alias(schema.SOURCE_MODIFIED),
    )
    read = functools.partial(read_contents, spark)
    if not wanted.has_classes:
        return FolderListing(qualified, _with_classes(files, qualified, wanted), read)
    kept = keep(files)
    try:
        wanted = _decided_by_spark(kept, qualified, wanted)
    except BaseException:
        forget(kept)
        raise
    return FolderListing(qualified, _with_classes(kept, qualified, wanted), read, (kept,), wanted.keep_names)


def _with_classes(files: DataFrame, root: str, wanted: Wanted) -> DataFrame:
    """Adds class, number and reason to the files below a folder."""
    from pyspark.sql import functions as F

    below, rule = _below(root), _PathRule(wanted)
    return files.select(
        *files.columns,
        # Left to itself, Spark 4.1 looks for Arrow in the type hints and warns that it has found none.
        F.udf(rule.class_of, "string", useArrow=False)(below).alias(schema.LABEL_NAME),
        F.udf(rule.rank_of, "int", useArrow=False)(below).alias(LABEL_RANK),
        F.udf(rule.ignored_of, "string", useArrow=False)(below).alias(IGNORED),
    )


def _decided_by_spark(files: DataFrame, root: str, wanted: Wanted) -> Wanted:
    """Looks at the folders that hold files, by a job of its own, and decides about their names.

    As in a local folder, those without images count for the rule of names, and not for that of one class.
    """
    from pyspark.sql import functions as F

    is_listed = F.udf(_PathRule(wanted).is_listed, "boolean", useArrow=False)(_below(root))
    found = files.select(F.regexp_extract(_below(root), "^(.*)/", 1).alias("folder"), is_listed.alias("is_listed"))
    by_folder = found.where("folder <> ''").groupBy("folder").agg(F.max("is_listed")).collect()
    folders = [(folder.split("/"), is_listed) for folder, is_listed in by_folder]
    wanted = wanted.decided({parts[0] for parts, _ in folders})
    wanted.check_folders(parts for parts, is_listed in folders if is_listed)
    return wanted


def _below(root: str) -> Column:
    """The path of a file below a folder."""
    from pyspark.sql import functions as F

    return F.substring(schema.PATH, len(root.rstrip("/")) + 2, 1_000_000)


def _all_files(spark: SparkSession, root: str) -> DataFrame:
    """Lists path, length and time of change of every file below a folder, by all executors.

    Spark's public readers skip empty files and names that start with `_`, which would then be missing without a word,
    and ask the store about each file once more.
    """
    from pyspark.sql import DataFrame as SparkDataFrame
    from pyspark.sql import functions as F

    try:
        java = jvm(spark)
        no_filter = getattr(getattr(java.scala.collection.immutable, "Set$EmptySet$"), "MODULE$")  # hides no name
        settings = java.org.apache.spark.util.SerializableConfiguration(
            java_session(spark).sessionState().newHadoopConf()
        )
        folders = java.java.util.ArrayList()
        folders.add(root)
        found = java.org.apache.spark.sql.delta.util.DeltaFileOperations.recursiveListDirs(
            java_session(spark),
            java.org.apache.spark.api.python.PythonUtils.toSeq(folders),
            java_broadcast(spark, settings),
            no_filter,
            no_filter,
            java.scala.Option.empty(),
            True,
        )
        listed = SparkDataFrame(found.toDF(), spark).where("NOT isDir")
        return listed.select("path", "length", F.timestamp_millis("modificationTime").alias("modified"))
    except (AttributeError, TypeError):  # no JVM in a Connect session, other names of Delta's classes on Databricks
        files = files_by_reader(spark, root)
        return files.select("path", "length", F.col("modificationTime").alias("modified"))


def qualified_folder(spark: SparkSession, root: str, layout: str) -> str:
    """Asks Hadoop for the full URI of a folder; in a Connect session it has to be given."""
    try:
        if is_connect(spark):
            files_by_reader(spark, root)
            return root
        path, file_system = hadoop_path(spark, root)
        qualified = file_system.makeQualified(path)
        status = file_system.getFileStatus(qualified)
    except (SessionError, StoreError):
        raise
    except Exception as error:  # py4j wraps every Hadoop exception in one type, whose text names it
        text = str(getattr(error, "java_exception", None) or error)
        if lacks_bucket(text):
            raise no_bucket(root) from error
        raise SourceNotFoundError(
            f"{root} cannot be listed through Spark: {text.splitlines()[0]}. Check the location, and the access to "
            "it in Spark's settings. An object store has no empty folders. If it was emptied on purpose, remove its "
            f"rows: delete(\"path LIKE '{root.rstrip('/')}/%'\") (lakelens table delete)"
        ) from error
    if not status.isDirectory():
        raise SourceNotFoundError(f"{root} is a file; layout {layout!r} wants a folder")
    return str(qualified.toString())


@dataclass(frozen=True)
class _PathRule:
    """Derives a listed file's values from its path below the source folder."""

    wanted: Wanted

    def class_of(self, path: str) -> str | None:
        return self.wanted.class_of(path.split("/"))

    def rank_of(self, path: str) -> int | None:
        return self.wanted.rank_of(path.split("/"))

    def is_listed(self, path: str) -> bool:
        return self.ignored_of(path) is None

    def ignored_of(self, path: str) -> str | None:
        parts = path.split("/")
        if any(is_hidden(part) for part in parts):
            return HIDDEN
        # Annotation files of this suffix are copied rather than read by Spark, and some tools write just such names.
        if parts[-1].startswith("_") and not path.lower().endswith(".json"):
            return HIDDEN_BY_SPARK if has_suffix(path, self.wanted.suffixes) else NOT_AN_IMAGE_NAME
        if not has_suffix(parts[-1], self.wanted.suffixes):
            return NOT_AN_IMAGE_NAME
        return self.wanted.why_no_class(parts)


def list_share(batches: Iterable[pa.RecordBatch], root: bytes, tasks: int, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Lists, in each of some tasks, what lies below its share of the top-level names."""
    for batch in batches:
        for task in batch.column(0).to_pylist():
            top = list_top(root)
            decided = wanted.decided(top.folder_names)
            try:
                top.check(os.fsdecode(root), decided)
                yield _told(root, sight(top.kind(decided), os.fsdecode(root)))
                # By its name and not its place: a name that comes or goes between two tasks' looks moves no other one.
                share = [name for name in top.names if zlib.crc32(_shared_by(name, decided)) % tasks == task]
                listed = list_below(root, share, decided)
                while rows := list(itertools.islice(listed, _LISTING_ROWS)):
                    yield folder_batch(rows)
            except UsageError as error:
                yield _told(root, refusal(error))


def _shared_by(name: bytes, wanted: Wanted) -> bytes:
    """Gives what decides about the task of a top-level name: folders that may be one class come to one task."""
    return (wanted.class_of([os.fsdecode(name), ""]) or "").encode("utf-8", "replace") or name


def _told(root: bytes, reason: str) -> pa.RecordBatch:
    """Makes the row by which a task tells the driver what it sees."""
    # Rows of one path become one in a plan; different reasons have to arrive.
    path = f"{local_uri(root)}#{zlib.crc32(reason.encode())}"
    return folder_batch([ListedFile(path, -1, 0, None, None, reason)])
