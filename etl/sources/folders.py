"""Lists folders: local and mounted ones by the Python workers, any other URI through Spark's `binaryFile`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import SessionError, SourceNotFoundError, StoreError, UsageError
from ...locations import has_scheme
from ...spark.port import forget, is_connect, java_broadcast, java_session, jvm, keep, parallelism
from ...spark.workers import map_in_arrow
from ...stores.clients import lacks_bucket, no_bucket
from ..files import ListedFile, Wanted, list_below, list_top, local_uri
from ..model import schema
from ..spark.catalog import files_by_reader, hadoop_path
from .source import FOLDER_LISTING, IGNORED, LABEL_RANK, Listing, Source, completed, read_contents, refusal, sight

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_LISTING_ROWS = 10_000


def list_class_folders(spark: SparkSession, source: Source, *, keep_names: bool | None) -> Listing:
    """Lists a folder whose folders name the classes."""
    folder = list_folder(spark, source.folder, Wanted(source.layout, keep_names=keep_names))
    return dataclasses.replace(folder, files=completed(folder.files))


def list_folder(spark: SparkSession, root: str, wanted: Wanted) -> Listing:
    """Lists a folder as rows of `FOLDER_LISTING`: a local or mounted one by the workers, another one through Spark.

    What a worker refuses, a missing folder or two folders of one class, is a row whose reason is a `refusal`.
    """
    if has_scheme(root):
        return list_folder_by_spark(spark, root, wanted)
    root_bytes, tasks = os.fsencode(root), 2 * parallelism(spark)
    task = functools.partial(list_share, root=root_bytes, tasks=tasks, wanted=wanted)
    files = map_in_arrow(spark.range(0, tasks, 1, tasks), task, schema.ddl_of(FOLDER_LISTING))
    return Listing(files, local_uri(root_bytes))


def list_folder_by_spark(spark: SparkSession, root: str, wanted: Wanted) -> Listing:
    """Lists a folder of any file system that Spark reads; names that start with `_` are skipped with a reason."""
    qualified = qualified_folder(spark, root, wanted.layout)
    files, read = _all_files(spark, qualified), functools.partial(read_contents, spark)
    if not wanted.has_classes:
        return Listing(_with_classes(files, qualified, wanted), qualified, read)
    kept = keep(files)
    try:
        wanted = _decided_by_spark(kept, qualified, wanted)
    except BaseException:
        forget(kept)
        raise
    found = _with_classes(kept, qualified, wanted)
    return Listing(found, qualified, read, keeps_names=wanted.keep_names, cached=(kept,))


def _with_classes(files: DataFrame, root: str, wanted: Wanted) -> DataFrame:
    """Adds class, number and reason to the files below a folder."""
    return files.select(
        *files.columns,
        _of_parts(root, wanted.class_of, "string").alias(schema.LABEL_NAME),
        _of_parts(root, wanted.rank_of, "int").alias(LABEL_RANK),
        _of_parts(root, wanted.why_ignored, "string").alias(IGNORED),
    )


def _of_parts(root: str, rule: Callable[[list[str]], Any], kind: str) -> Column:
    """Applies a rule to the components of a file's path below a folder."""
    from pyspark.sql import functions as F

    # Left to itself, Spark 4.1 looks for Arrow in the type hints and warns that it has found none.
    return F.udf(lambda path: rule(path.split("/")), kind, useArrow=False)(_below(root))


def _decided_by_spark(files: DataFrame, root: str, wanted: Wanted) -> Wanted:
    """Looks at the folders that hold files, by a job, and decides whether their numbers are part of their names."""
    from pyspark.sql import functions as F

    is_listed = _of_parts(root, wanted.why_ignored, "string").isNull().alias("is_listed")
    found = files.select(F.regexp_extract(_below(root), "^(.*)/", 1).alias("folder"), is_listed)
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
    """Lists path, length and time of change of every file below a folder, by all executors."""
    # Spark's public readers skip empty files and names that start with `_`, and ask the store about each file again.
    from pyspark.sql import DataFrame as SparkDataFrame
    from pyspark.sql import functions as F

    path, length = F.col("path").alias(schema.PATH), F.col("length").alias(schema.SOURCE_LENGTH)
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
        return listed.select(path, length, F.timestamp_millis("modificationTime").alias(schema.SOURCE_MODIFIED))
    except (AttributeError, TypeError):  # no JVM in a Connect session, other names of Delta's classes on Databricks
        files = files_by_reader(spark, root)
        return files.select(path, length, F.col("modificationTime").alias(schema.SOURCE_MODIFIED))


def qualified_folder(spark: SparkSession, root: str, layout: str) -> str:
    """Asks Hadoop for the full URI of a folder; in a Connect session it has to be given."""
    advice = (
        ". Check the location, and the access to it in Spark's settings. An object store has no empty folders. If it "
        f"was emptied on purpose, remove its rows: delete(\"path LIKE '{root.rstrip('/')}/%'\") (lakelens table delete)"
    )
    with naming_hadoop_errors(root, "listed", advice):
        if is_connect(spark):
            files_by_reader(spark, root)
            return root
        path, file_system = hadoop_path(spark, root)
        qualified = file_system.makeQualified(path)
        status = file_system.getFileStatus(qualified)
    if not status.isDirectory():
        raise SourceNotFoundError(f"{root} is a file; layout {layout!r} wants a folder")
    return str(qualified.toString())


@contextmanager
def naming_hadoop_errors(location: str, verb: str, advice: str = "") -> Iterator[None]:
    """Raises an error of ours where Hadoop cannot open a source."""
    try:
        yield
    except (SessionError, StoreError):
        raise
    except Exception as error:  # py4j wraps every Hadoop exception in one type, whose text names it
        text = str(getattr(error, "java_exception", None) or error)
        if lacks_bucket(text):
            raise no_bucket(location) from error
        raise SourceNotFoundError(
            f"{location} cannot be {verb} through Spark: {text.splitlines()[0]}{advice}"
        ) from error


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


def folder_batch(rows: Sequence[ListedFile]) -> pa.RecordBatch:
    """Packs rows into an Arrow batch of `FOLDER_LISTING`."""
    values = list(zip(*rows, strict=True))[: len(FOLDER_LISTING)]
    columns = [pa.array(column, kind) for column, kind in zip(values, FOLDER_LISTING.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=FOLDER_LISTING)
