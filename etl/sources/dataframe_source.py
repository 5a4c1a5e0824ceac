"""DataFrames as sources: rows of paths, as of Spark's `image` source, or of bytes, as `binaryFile` gives them."""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError
from ...locations import absolute_path
from ..annotations.manifest import annotation_of_row, match_columns
from ..annotations.record import ANNOTATIONS_DDL, CONTENT_CONFLICT, annotations_arrow_schema, row_of
from ..annotations.references import in_one_spelling, resolve_reference
from ..files.walk import local_uri
from ..model import schema
from ..spark.path_forms import column_in_one_form
from .annotated import list_annotated_paths, stamped_files, with_problem
from .annotation_frames import located_rows, merged_by_path, read_now
from .contents import CONTENT, OTHER_ROWS
from .listing import PROBLEMS, Listing, completed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NAME = "DataFrame"
_IS_CONFLICT = "is_conflict"


def list_frame(spark: SparkSession, frame: DataFrame, images: str | None) -> Listing:
    """Lists the rows of a DataFrame.

    It has a column `path` and, as a manifest has them, a label or boxes and perhaps a split; either the paths are read,
    or a binary column `content` holds the bytes. Rows of one path are one image, with the boxes of all; a row without a
    path is listed under its number. Rows of Spark's `image` source are the files that they name: the pixels that it has
    decoded are not what the files hold, and would replace what a folder has stored under the same paths.

    Args:
        spark: A writing session.
        frame: The rows, of any session.
        images: Folder that relative paths start from.

    Raises:
        InvalidArgumentError: If the columns are not these.
        AnnotationFileError: If two columns of the same meaning disagree in a row.
    """
    from pyspark.sql import functions as F

    frame = _in_session(spark, frame)
    kinds = dict(frame.dtypes)
    is_by_spark = kinds.get("image", "").startswith("struct<origin:")
    if is_by_spark:
        frame = frame.withColumn("path", F.url_decode(F.replace("image.origin", F.lit("+"), F.lit("%2B"))))
        frame = frame.drop("image")
        kinds = dict(frame.dtypes)
    if "path" not in kinds:
        raise InvalidArgumentError(
            f"the DataFrame has the columns {', '.join(kinds)}; one to ingest has a column path, and perhaps content, "
            "label_name, boxes, split"
        )
    if kinds.get(CONTENT) == "binary":
        return _list_contents(frame)
    is_listing = is_by_spark or {"length", "modificationTime"} <= set(kinds)
    reader = _PathRows(None if images is None else absolute_path(images), is_listing)
    rows = frame.drop("length", "modificationTime").mapInArrow(reader.read, ANNOTATIONS_DDL)
    merged = read_now(merged_by_path(rows, has_order=False))  # looked at twice, and the query may be a long one
    return dataclasses.replace(list_annotated_paths(spark, NAME, merged, images), cached=(merged,))


def _in_session(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """The same rows in another session: what is made of a frame is written by the settings of its own session."""
    name = f"lakelens_{uuid.uuid4().hex}"
    frame.createGlobalTempView(name)
    try:
        return spark.table(f"global_temp.{name}")
    finally:
        spark.catalog.dropGlobalTempView(name)


def _list_contents(frame: DataFrame) -> Listing:
    """Lists rows that bring their bytes.

    Spark keeps the rows on the disks of the executors until the ingest ends. Labels, digests and bytes are looked at
    one after the other, and a query may give other rows each time: `limit`, `sample`, numbers of rows in the path.
    """
    from pyspark import StorageLevel

    frame = frame.withColumn("path", column_in_one_form("path")).persist(StorageLevel.DISK_ONLY)
    try:
        rows = frame.drop(CONTENT, "length", "modificationTime", schema.SOURCE_LENGTH)
        annotated = read_now(merged_by_path(rows.mapInArrow(_KeyRows().read, ANNOTATIONS_DDL), has_order=False))
    except BaseException:
        frame.unpersist()
        raise
    return dataclasses.replace(_listed_contents(frame, annotated), cached=(frame, annotated))


def _listed_contents(frame: DataFrame, annotated: DataFrame) -> Listing:
    from pyspark.sql import functions as F

    modified = F.col("modificationTime") if "modificationTime" in frame.columns else F.timestamp_seconds(F.lit(0))
    content_hash = F.sha2(CONTENT, 256)
    stamps = frame.groupBy("path").agg(
        F.max(F.length(CONTENT)).cast("bigint").alias(schema.SOURCE_LENGTH),
        F.max(modified).alias(schema.SOURCE_MODIFIED),
        F.max(content_hash).alias(schema.CONTENT_HASH),
        (F.min(content_hash) != F.max(content_hash)).alias(_IS_CONFLICT),
    )

    @functools.cache
    def has_repeats() -> bool:
        return bool(frame.where("path <> ''").groupBy("path").count().where("count > 1").head(1))

    def read(work: DataFrame, batch_rows: int) -> DataFrame:
        work.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(batch_rows))
        contents = frame.select("path", CONTENT)
        if has_repeats():  # finding one row per path shuffles the bytes, which most frames need not pay for
            wanted = contents.join(F.broadcast(work.select("path")), "path", "left_semi")
            contents = wanted.groupBy("path").agg(F.max_by(CONTENT, content_hash).alias(CONTENT))
        read = contents.join(F.broadcast(work.where(f"{schema.SOURCE_LENGTH} >= 0")), "path")
        # Spark computes the rows again where it has lost them with an executor.
        is_listed = F.sha2(CONTENT, 256).eqNullSafe(F.col(schema.CONTENT_HASH))
        read = read.withColumn(CONTENT, F.when(is_listed, F.col(CONTENT)).otherwise(F.raise_error(F.lit(OTHER_ROWS))))
        # An outer join would shuffle the bytes: rows without a path or without bytes come beside the others.
        absent = work.where(f"{schema.SOURCE_LENGTH} < 0").withColumn(CONTENT, F.lit(None).cast("binary"))
        return read.unionByName(absent)

    files = stamped_files(annotated.join(stamps, "path", "left"))
    conflict = with_problem(CONTENT_CONFLICT, "its rows differ in their content")
    files = files.withColumn(PROBLEMS, F.when(F.col(_IS_CONFLICT), conflict).otherwise(F.col(PROBLEMS)))
    return Listing(NAME, completed(files), read_contents=read, has_annotations=True)


class _KeyRows:
    """Reads what rows say beside their bytes; paths are keys and stay as they are."""

    def path_of(self, path: object) -> str:
        if not isinstance(path, str) or not path:
            raise InvalidArgumentError(f"{path!r} is no path")
        return path

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for names, located in located_rows(batches, NAME):
            columns = match_columns(names)
            annotations = [annotation_of_row(row, columns, self.path_of, where) for row, where in located]
            rows: list[dict[str, Any]] = [row_of(annotation) for annotation in annotations]
            yield pa.RecordBatch.from_pylist(rows, schema=annotations_arrow_schema())


class _PathRows(_KeyRows):
    """Reads rows whose paths are to be opened."""

    def __init__(self, root: str | None, is_listing: bool) -> None:
        self._root = root or "/"
        self._is_listing = is_listing

    def path_of(self, path: object) -> str:
        if self._is_listing and isinstance(path, str) and path.startswith("file:/"):  # Hadoop does not quote
            listed = b"/" + path[len("file:") :].lstrip("/").encode("utf-8", "surrogateescape")
            return local_uri(in_one_spelling(listed, self._root))
        return resolve_reference(path, self._root)
