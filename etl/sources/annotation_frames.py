"""Annotations as Spark DataFrames of `annotations.ANNOTATIONS_DDL`, one row per image, to be joined by path.

A local COCO file or manifest is read by one worker; one in an object store by the driver, through a temporary copy, or
by one worker in a Connect session.
Parquet manifests are read by all workers, as VOC's XML files are in `voc_source`.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ...errors import AnnotationFileError, SessionError, SourceNotFoundError, StoreError
from ...locations import absolute_path, has_scheme
from ...spark.port import is_connect, jvm, parallelism
from ...spark.python_tasks import map_in_arrow
from ...stores.clients import lacks_bucket, no_bucket
from ..annotations.record import (
    ANNOTATION_MISSING,
    ANNOTATIONS_DDL,
    FOUND_BY_NAME,
    IMAGE_MISSING,
    Annotation,
    annotation_batches,
    annotation_of,
    merge_annotations,
)
from ..annotations.references import images_by_name, name_in_path
from ..spark.catalog import files_by_reader, hadoop_path, pattern_of
from ..spark.writing_session import local_frame

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Batches = Iterable[pa.RecordBatch]
    Records = Callable[[BinaryIO], Iterator[Annotation]]

_CONTENT = "content"
_WORKER_ERROR = re.compile(rf"{AnnotationFileError.__name__}: (.+)")
_OF_LISTING = "is_listed"
_NAME = "base_name"


def match_images(annotations: DataFrame, paths: DataFrame) -> DataFrame:
    """Finds the image of each annotation: a row for each image, and a reason for each annotation without one.

    `images_by_name` has the rule for images that are not where their annotations say.
    """
    from pyspark.sql import functions as F

    listed = F.lit(True).alias(_OF_LISTING)
    name_of = F.udf(name_in_path, "string", useArrow=False)
    both = annotations.select("*", F.lit(False).alias(_OF_LISTING)).unionByName(
        paths.select("path", listed), allowMissingColumns=True
    )
    tasks = 2 * parallelism(annotations.sparkSession)
    named = both.withColumn(_NAME, name_of("path")).repartition(tasks, _NAME).sortWithinPartitions(_NAME, "path")
    return map_in_arrow(named, _match, ANNOTATIONS_DDL)


def merged_by_path(annotations: DataFrame, *, has_order: bool = True) -> DataFrame:
    """Joins the rows of each path, as `annotations.merge_annotations` does."""
    # Spark's 200 shuffle partitions would be 200 Python tasks for data that is small compared with the images.
    tasks = 2 * parallelism(annotations.sparkSession)
    order = ["path"] if has_order else ["path", *(name for name in annotations.columns if name != "path")]
    partitioned = annotations.repartition(tasks, "path").sortWithinPartitions(*order)
    return map_in_arrow(partitioned, _merge, ANNOTATIONS_DDL)


def located_rows(batches: Batches, name: str) -> Iterator[tuple[list[str], list[tuple[dict[str, Any], str]]]]:
    """Yields the columns and the rows of each batch of a task, every row with a unique name."""
    from pyspark import TaskContext

    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    first = 1
    for batch in batches:
        rows = enumerate(batch.to_pylist(), start=first)
        yield batch.schema.names, [(row, f"{name}#row={task}.{number}") for number, row in rows]
        first += batch.num_rows


def rows_of_one_file(spark: SparkSession, location: str, records: Records) -> DataFrame:
    """Reads one file: a local one in a task, another one on the driver, through a temporary copy.

    A Connect session's driver is elsewhere: a task reads the file's bytes there.
    """
    check_exists(spark, location)
    absolute = absolute_path(location)
    if not has_scheme(absolute):
        path = absolute.encode("utf-8", "surrogateescape")

        def read(batches: Batches) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                pass
            with open(path, "rb") as stream:  # noqa: PTH123  bytes: pathlib takes none
                yield from annotation_batches(records(stream))

        return map_in_arrow(spark.range(0, 1, 1, 1), read, ANNOTATIONS_DDL)
    if is_connect(spark):

        def parse(batches: Batches) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for content in batch.column(0).to_pylist():
                    yield from annotation_batches(records(io.BytesIO(content)))

        return map_in_arrow(files_by_reader(spark, absolute).select(_CONTENT), parse, ANNOTATIONS_DDL)
    with tempfile.TemporaryDirectory(prefix="lakelens-annotations-") as folder:
        copy = Path(folder) / "copy"
        _copy_to_local(spark, absolute, copy)
        with copy.open("rb") as stream:
            rows = [(_ipc_bytes(batch),) for batch in annotation_batches(records(stream))]
    frame = local_frame(spark, rows, f"{_CONTENT} BINARY")
    return map_in_arrow(frame, _read_ipc, ANNOTATIONS_DDL)


@contextmanager
def annotation_errors() -> Iterator[None]:
    """Raises what a task found wrong with an annotation file as an error of its own."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = _WORKER_ERROR.search(str(error))
        if found is None:
            raise
        raise AnnotationFileError(found[1]) from error


def _ipc_bytes(batch: pa.RecordBatch) -> bytearray:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytearray(sink.getvalue())


def _read_ipc(batches: Batches) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for value in batch.column(0):
            with pa.ipc.open_stream(value.as_buffer()) as reader:
                yield from reader


def check_exists(spark: SparkSession, location: str) -> None:
    """Checks that a file or folder exists, before any job starts."""
    absolute = absolute_path(location)
    if not has_scheme(absolute):
        if not Path(absolute).exists():
            raise SourceNotFoundError(f"{absolute} does not exist; give the path of an existing file")
        return
    try:
        if is_connect(spark):
            files_by_reader(spark, absolute)
            return
        path, file_system = hadoop_path(spark, absolute)
        exists = bool(file_system.exists(path))
    except (SessionError, StoreError):
        raise
    except Exception as error:  # py4j wraps every Hadoop exception in one type
        if lacks_bucket(str(getattr(error, "java_exception", None) or error)):
            raise no_bucket(absolute) from error
        raise SourceNotFoundError(f"{absolute} cannot be read through Spark: {str(error).splitlines()[0]}") from error
    if not exists:
        raise SourceNotFoundError(f"{absolute} does not exist; give the URI of an existing file")


def _copy_to_local(spark: SparkSession, location: str, target: Path) -> None:
    path, file_system = hadoop_path(spark, location)
    local = jvm(spark).org.apache.hadoop.fs.Path(f"file://{target}")
    # No checksum file next to the copy, and the source stays.
    file_system.copyToLocalFile(False, path, local, True)


def path_for_spark(location: str) -> str:
    """Writes a location for Spark's readers, which take a local path for a pattern."""
    absolute = absolute_path(location)
    if has_scheme(absolute):
        return absolute
    return f"file://{pattern_of(absolute)}"


def _match(batches: Batches) -> Iterator[pa.RecordBatch]:
    rows = (row for batch in batches for row in batch.to_pylist())
    yield from annotation_batches(
        annotation for _, group in itertools.groupby(rows, lambda row: row[_NAME]) for annotation in _matched(group)
    )


def _matched(rows: Iterable[dict[str, Any]]) -> Iterator[Annotation]:
    """Matches the images and the annotations of one base name."""
    annotations: dict[str, Annotation] = {}
    images: dict[str, None] = {}  # in the order of the listing
    for row in rows:
        if row[_OF_LISTING]:
            images[row["path"]] = None
        else:
            annotations[row["path"]] = annotation_of(row)
    lacking = [path for path, annotation in annotations.items() if path not in images and annotation.quarantine is None]
    left = [path for path in images if path not in annotations]
    found = images_by_name(lacking, left)
    taken, missing = set(found.values()), {*lacking} - found.keys()
    for path, annotation in annotations.items():
        if path in found:
            by_name = annotation.with_problem(FOUND_BY_NAME, f"annotated as {path}")
            yield dataclasses.replace(by_name, path=found[path])
        elif path in missing:
            yield annotation.with_problem(IMAGE_MISSING, "the source holds no such file")
        else:
            yield annotation
    for path in left:
        if path not in taken:
            yield Annotation(path).with_problem(ANNOTATION_MISSING, "the annotation file does not name it")


def _merge(batches: Batches) -> Iterator[pa.RecordBatch]:
    rows = (annotation_of(row) for batch in batches for row in batch.to_pylist())
    yield from annotation_batches(merge_annotations(rows))
