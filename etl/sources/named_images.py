"""Images that annotations name: matched with the files that there are, their sizes and times."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ...errors import InvalidArgumentError
from ...locations import has_scheme, scheme_of
from ...spark.python_tasks import map_in_arrow
from ..annotations.record import ANNOTATION_ROWS, IMAGE_MISSING, PATH_UNUSABLE
from ..files import MANIFEST, Wanted, local_path
from ..model import schema
from .contents import read_contents
from .folders import FolderListing, list_folder_by_spark
from .listing import PROBLEMS, Listing, completed
from .source import Source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ..changes.plan import Plan

# Spark reads no file of such a name.
_NOT_LISTED = "no such file, or its name starts with _ or ., which Spark skips"
_ELSEWHERE = "in another file system than the other images"
_STATUS = pa.schema([*ANNOTATION_ROWS, *schema.STAMP])


def annotated_listing(folder: FolderListing, annotations: DataFrame, ignored: DataFrame) -> Listing:
    """Joins annotations with the sizes and times of a folder's files, and adds the ignored files."""
    stamps = folder.files.select(schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED)
    # Sending one side to all tasks would be a job of its own.
    files = stamped_files(annotations.join(stamps.hint("merge"), schema.PATH, "left"))
    listed = completed(files).unionByName(completed(ignored))
    return Listing(listed, folder.root, folder.read_contents, has_annotations=True)


def list_named_images(spark: SparkSession, source: Source, annotations: DataFrame) -> Listing:
    """Lists images that are named one by one, and finds their sizes and times."""
    from pyspark.sql import functions as F

    image_root = source.image_root
    # What stands for the path of a row without one is in no file system.
    has_path = ~F.coalesce(F.exists(PROBLEMS, _is_without_path), F.lit(False))
    scheme = scheme_of(image_root) if image_root is not None and has_scheme(image_root) else "file"
    is_stray = has_path & ~F.col(schema.PATH).startswith(f"{scheme}:")
    elsewhere = with_problem(PATH_UNUSABLE, f"{_ELSEWHERE}, which are in {scheme}:")
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
    problems = F.when(missing, with_problem(IMAGE_MISSING, _NOT_LISTED)).otherwise(F.col(PROBLEMS))
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


def _is_without_path(found: Column) -> Column:
    return found["reason"] == PATH_UNUSABLE


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
            if any(found["reason"] == PATH_UNUSABLE for found in row[PROBLEMS] or ()):
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
        return PATH_UNUSABLE
    gone = isinstance(error, ValueError) or error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
    return IMAGE_MISSING if gone else None
