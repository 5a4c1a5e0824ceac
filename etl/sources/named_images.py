"""Annotations as Spark DataFrames of `ANNOTATIONS_DDL`, and the images that they name, with their sizes and times."""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from ...errors import AnnotationFileError, InvalidArgumentError, SourceNotFoundError
from ...locations import absolute_path, has_scheme, scheme_of
from ...spark.port import is_connect, jvm, parallelism
from ...spark.workers import map_in_arrow
from ..annotations import record
from ..annotations.record import ANNOTATIONS_DDL, Annotation, annotation_batches, annotation_of, merge_annotations
from ..annotations.references import images_by_name, name_in_path
from ..files import MANIFEST, Wanted, local_path
from ..model import schema
from ..spark.catalog import files_by_reader, hadoop_path, pattern_of
from ..spark.writing_session import local_frame
from .folders import list_folder_by_spark, naming_hadoop_errors
from .source import CONTENT, PROBLEMS, Listing, Source, completed, has_problem, read_contents

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    Batches = Iterable[pa.RecordBatch]
    Records = Callable[[BinaryIO], Iterator[Annotation]]

    from ..changes.plan import Plan

_WORKER_ERROR = re.compile(rf"{AnnotationFileError.__name__}: (.+)")
_OF_LISTING = "is_listed"
_NAME = "base_name"


def match_images(annotations: DataFrame, paths: DataFrame) -> DataFrame:
    """Finds the image of each annotation: a row for each image, and a reason for each annotation without one."""
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
    """Reads one file: a local one in a task, another on the driver through a temporary copy, or in a Connect task."""
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

        return map_in_arrow(files_by_reader(spark, absolute).select(CONTENT), parse, ANNOTATIONS_DDL)
    with tempfile.TemporaryDirectory(prefix="lakelens-annotations-") as folder:
        copy = Path(folder) / "copy"
        _copy_to_local(spark, absolute, copy)
        with copy.open("rb") as stream:
            rows = [(_ipc_bytes(batch),) for batch in annotation_batches(records(stream))]
    frame = local_frame(spark, rows, f"{CONTENT} BINARY")
    return map_in_arrow(frame, _read_ipc, ANNOTATIONS_DDL)


@contextmanager
def annotation_errors() -> Iterator[None]:
    """Raises what a task found wrong with an annotation file as an `AnnotationFileError`."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = _WORKER_ERROR.search(str(error))
        if found is None:
            raise
        raise AnnotationFileError(found[1]) from error


def _ipc_bytes(batch: pa.RecordBatch) -> bytearray:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytearray(sink.getvalue())


def _read_ipc(batches: Batches) -> Iterator[pa.RecordBatch]:
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
    with naming_hadoop_errors(absolute, "read"):
        if is_connect(spark):
            files_by_reader(spark, absolute)
            return
        path, file_system = hadoop_path(spark, absolute)
        exists = bool(file_system.exists(path))
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
    groups = itertools.groupby(rows, lambda row: row[_NAME])
    return annotation_batches(annotation for _, group in groups for annotation in _matched(group))


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
    found = images_by_name(lacking, left, others=len(images) - len(left))
    taken, missing = set(found.values()), {*lacking} - found.keys()
    for path, annotation in annotations.items():
        if path in found:
            by_name = annotation.with_problem(record.FOUND_BY_NAME, f"annotated as {path}")
            yield dataclasses.replace(by_name, path=found[path])
        elif path in missing:
            yield annotation.with_problem(record.IMAGE_MISSING, "the source holds no such file")
        else:
            yield annotation
    for path in left:
        if path not in taken:
            yield Annotation(path).with_problem(record.ANNOTATION_MISSING, "the annotation file does not name it")


def _merge(batches: Batches) -> Iterator[pa.RecordBatch]:
    rows = (annotation_of(row) for batch in batches for row in batch.to_pylist())
    return annotation_batches(merge_annotations(rows))


# Spark reads no file of such a name.
_NOT_LISTED = "no such file, or its name starts with _ or ., which Spark skips"
_ELSEWHERE = "in another file system than the other images"
_STATUS = pa.schema([*record.ANNOTATION_ROWS, *schema.STAMP])


def annotated_listing(folder: Listing, annotations: DataFrame, ignored: DataFrame) -> Listing:
    """Joins annotations with the sizes and times of a folder's files, and adds the ignored files."""
    stamps = folder.files.select(schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED)
    # Sending one side to all tasks would take a separate Spark job.
    files = stamped_files(annotations.join(stamps.hint("merge"), schema.PATH, "left"))
    listed = completed(files).unionByName(completed(ignored))
    return dataclasses.replace(folder, files=listed, has_annotations=True)


def list_named_images(spark: SparkSession, source: Source, annotations: DataFrame) -> Listing:
    """Lists images that are named one by one, and finds their sizes and times."""
    from pyspark.sql import functions as F

    image_root = source.image_root
    # What stands for the path of a row without one is in no file system.
    has_path = ~has_problem(record.PATH_UNUSABLE)
    scheme = scheme_of(image_root) if image_root is not None and has_scheme(image_root) else "file"
    is_stray = has_path & ~F.col(schema.PATH).startswith(f"{scheme}:")
    elsewhere = with_problem(record.PATH_UNUSABLE, f"{_ELSEWHERE}, which are in {scheme}:")
    annotations = annotations.withColumn(PROBLEMS, F.when(is_stray, elsewhere).otherwise(F.col(PROBLEMS)))
    has_path = has_path & ~is_stray
    if image_root is None or scheme == "file":
        files = map_in_arrow(annotations, _stat_local, schema.ddl_of(_STATUS))
        return Listing(completed(files), has_annotations=True)
    found = list_folder_by_spark(spark, image_root, Wanted(MANIFEST)).files.where(
        ~F.col(schema.PATH).rlike("/[_.][^/]*$")
    )
    stamped = annotations.join(found.select(schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED), "path", "left")
    missing = has_path & F.col(schema.SOURCE_LENGTH).isNull()
    problems = F.when(missing, with_problem(record.IMAGE_MISSING, _NOT_LISTED)).otherwise(F.col(PROBLEMS))
    files = stamped.withColumn(PROBLEMS, problems)
    read = functools.partial(read_contents, spark)
    return Listing(completed(stamped_files(files)), read_contents=read, has_annotations=True)


def check_not_all_elsewhere(source: Source, plan: Plan) -> None:
    """Checks that some image of a plan is in the file system of the source's `image_root`."""
    from pyspark.sql import functions as F

    is_named_one_by_one = source.is_frame or source.layout == MANIFEST
    if not is_named_one_by_one or not plan.rows_in or plan.unusable_paths < plan.rows_in:
        return
    is_elsewhere = F.exists(PROBLEMS, lambda found: found["detail"].startswith(_ELSEWHERE))
    stray = plan.files.where(is_elsewhere).select(schema.PATH).head()
    if stray is not None:
        raise InvalidArgumentError(
            f"{source.name} names no image in the file system of {source.image_root or 'this machine'}, but such as "
            f"{stray[0]}; give the folder that holds them: images='s3a://bucket/folder' (--images)"
        )


def stamped_files(files: DataFrame) -> DataFrame:
    """Marks images that do not exist by a size and a time that no file has."""
    from pyspark.sql import functions as F

    length = F.coalesce(F.col(schema.SOURCE_LENGTH), F.lit(-1).cast("bigint"))
    modified = F.coalesce(F.col(schema.SOURCE_MODIFIED), F.timestamp_seconds(F.lit(0)))
    return files.withColumn(schema.SOURCE_LENGTH, length).withColumn(schema.SOURCE_MODIFIED, modified)


def with_problem(reason: str, detail: str) -> Column:
    """The problems of an image and one more."""
    from pyspark.sql import functions as F

    problem = F.struct(F.lit(reason).alias("reason"), F.lit(detail).alias("detail"))
    return F.concat(F.coalesce(F.col(PROBLEMS), F.array()), F.array(problem))


def _stat_local(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Adds the size and time of local files; one that is not there has a problem."""
    for batch in batches:
        rows = batch.to_pylist()
        for row in rows:
            row[schema.SOURCE_LENGTH], row[schema.SOURCE_MODIFIED] = -1, 0
            if any(found["reason"] == record.PATH_UNUSABLE for found in row[PROBLEMS] or ()):
                continue
            try:
                status = os.stat(local_path(row["path"]))  # noqa: PTH116  bytes: pathlib takes none
                row[schema.SOURCE_LENGTH] = status.st_size
                row[schema.SOURCE_MODIFIED] = status.st_mtime_ns // 1_000_000 * 1000
            except (OSError, ValueError) as error:
                reason = _reason_of(error)
                if reason is not None:
                    problem = {"reason": reason, "detail": f"{type(error).__name__}: {row['path'][:150]}"}
                    row[PROBLEMS] = [*(row[PROBLEMS] or ()), problem]
        yield pa.RecordBatch.from_pylist(rows, schema=_STATUS)


def _reason_of(error: OSError | ValueError) -> str | None:
    """Gives the reason for quarantine; None where the file may exist, so that reading it finds the reason."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return record.PATH_UNUSABLE
    gone = isinstance(error, ValueError) or error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
    return record.IMAGE_MISSING if gone else None
