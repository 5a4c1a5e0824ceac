"""Sources with a row per image: DataFrames of paths or of bytes, and manifests, which are CSV, JSON or Parquet."""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from ...errors import InvalidArgumentError
from ...spark.port import count_rows, is_connect, keep
from ...spark.workers import map_in_arrow
from ..annotations import manifest
from ..annotations.manifest import annotation_of_row, find_columns, match_columns, require_clear_boxes
from ..annotations.record import ANNOTATIONS_DDL, Annotation, ContentStamp, annotation_batches
from ..annotations.references import in_one_spelling, resolve_reference
from ..files import local_uri
from ..model import schema
from ..spark.catalog import column_in_one_form
from ..spark.writing_session import set_batch_rows
from . import named_images
from .named_images import list_named_images, located_rows, merged_by_path, rows_of_one_file, stamped_files
from .source import CONTENT, OTHER_ROWS, Listing, Source, completed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .named_images import Batches

_STAMP = "lakelens_stamp"
# Columns of Spark's `binaryFile` and of image tables that describe the bytes, not the image.
_OF_FILES = ("length", "modificationTime", schema.SOURCE_LENGTH)


def list_frame(spark: SparkSession, source: Source) -> Listing:
    """Lists the rows of a DataFrame: files by their `path`, or bytes in a binary column `content`.

    Rows of Spark's `image` source are the files that they name: its pixels are not what the files hold.
    """
    from pyspark.sql import functions as F

    frame = _in_session(spark, source.frame)
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
    path_of = functools.partial(_path_to_open, root=source.image_root or "/", is_listing=is_listing)
    read = functools.partial(_read_rows, path_of=path_of)
    rows = map_in_arrow(frame.drop("length", "modificationTime"), read, ANNOTATIONS_DDL)
    return list_named_images(spark, source, merged_by_path(rows, has_order=False))


def _in_session(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """The same rows in another session: a frame is written with the settings of its session."""
    if is_connect(spark):  # a writing session is the caller's there
        return frame
    name = f"lakelens_{uuid.uuid4().hex}"
    frame.createGlobalTempView(name)
    try:
        return spark.table(f"global_temp.{name}")
    finally:
        spark.catalog.dropGlobalTempView(name)


def _list_contents(frame: DataFrame) -> Listing:
    """Lists rows that bring their bytes.

    A query may give other rows each time it is computed, so bytes that are read later must have the listed digest.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    frame = keep(frame.withColumn("path", column_in_one_form("path")), StorageLevel.DISK_ONLY)
    # Not a plain cast, which fails on other texts from Spark 4 on.
    modified = F.expr("try_cast(modificationTime AS timestamp)" if "modificationTime" in frame.columns else "NULL")
    stamp = F.struct(
        F.sha2(CONTENT, 256).alias("content_hash"),
        F.length(CONTENT).cast("bigint").alias("length"),
        F.coalesce(F.unix_micros(modified.cast("timestamp")), F.lit(0)).alias("modified_us"),
    )
    rows = frame.withColumn(_STAMP, F.when(F.col(CONTENT).isNotNull(), stamp)).drop(CONTENT, *_OF_FILES)
    read = functools.partial(_read_rows, path_of=_key)
    listed = merged_by_path(map_in_arrow(rows, read, ANNOTATIONS_DDL), has_order=False)
    files = listed.withColumns(
        {
            schema.SOURCE_LENGTH: F.col("stamp.length"),
            schema.SOURCE_MODIFIED: F.timestamp_micros("stamp.modified_us"),
            schema.CONTENT_HASH: F.col("stamp.content_hash"),
        }
    )
    read_contents = _FrameContents(frame).read
    return Listing(completed(stamped_files(files)), read_contents=read_contents, has_annotations=True, cached=(frame,))


class _FrameContents:
    """Reads the bytes of a frame's rows."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    @functools.cached_property
    def _has_repeats(self) -> bool:
        return bool(count_rows(self._frame.where("path <> ''").groupBy("path").count().where("count > 1")))

    def read(self, work: DataFrame, batch_rows: int) -> DataFrame:
        """Adds the bytes to listed files, as `Listing.read_contents` does."""
        from pyspark.sql import functions as F

        set_batch_rows(work.sparkSession, batch_rows)
        contents = self._frame.select("path", CONTENT)
        content_hash = F.sha2(CONTENT, 256)
        if self._has_repeats:  # finding one row per path shuffles the bytes, which most frames need not pay for
            wanted = contents.join(F.broadcast(work.select("path")), "path", "left_semi")
            contents = wanted.groupBy("path").agg(F.max_by(CONTENT, content_hash).alias(CONTENT))
        read = contents.join(F.broadcast(work.where(f"{schema.SOURCE_LENGTH} >= 0")), "path")
        is_listed = content_hash.eqNullSafe(F.col(schema.CONTENT_HASH))
        read = read.withColumn(CONTENT, F.when(is_listed, F.col(CONTENT)).otherwise(F.raise_error(F.lit(OTHER_ROWS))))
        # An outer join would shuffle the bytes, so rows without a path or bytes are added by a union.
        absent = work.where(f"{schema.SOURCE_LENGTH} < 0").withColumn(CONTENT, F.lit(None).cast("binary"))
        return read.unionByName(absent)


def _read_rows(batches: Iterable[pa.RecordBatch], path_of: Callable[[object], str]) -> Iterator[pa.RecordBatch]:
    """Turns rows into rows of `ANNOTATIONS_DDL`, with the stamps of the bytes that they bring."""
    return annotation_batches(_annotations(batches, path_of))


def _annotations(batches: Iterable[pa.RecordBatch], path_of: Callable[[object], str]) -> Iterator[Annotation]:
    for names, located in located_rows(batches, "DataFrame"):
        columns = match_columns(name for name in names if name != _STAMP)
        require_clear_boxes(names, columns, "the DataFrame")
        for row, where in located:
            annotation = annotation_of_row(row, columns, path_of, where)
            stamp = row.get(_STAMP)
            # A row without a path is listed under its number, by which its bytes cannot be read.
            if stamp is not None and annotation.path != where:
                annotation = dataclasses.replace(annotation, stamp=ContentStamp(**stamp))
            yield annotation


def _key(path: object) -> str:
    """Returns the path of a row that brings its bytes, which stays as it is."""
    if not isinstance(path, str) or not path:
        raise InvalidArgumentError(f"{path!r} is not a path")
    return path


def _path_to_open(path: object, root: str, is_listing: bool) -> str:
    if is_listing and isinstance(path, str) and path.startswith("file:/"):  # Hadoop does not quote
        listed = b"/" + path[len("file:") :].lstrip("/").encode("utf-8", "surrogateescape")
        return local_uri(in_one_spelling(listed, root))
    return resolve_reference(path, root)


def list_manifest(spark: SparkSession, source: Source) -> Listing:
    """Lists the images that a manifest names; rows of one path are joined."""
    return list_named_images(spark, source, manifest_annotations(spark, source))


def manifest_annotations(spark: SparkSession, source: Source) -> DataFrame:
    """Reads a manifest as rows of `ANNOTATIONS_DDL`, one per path; `annotation_errors` names what is wrong with it."""
    location, image_root = source.name, source.image_root or "/"
    kind = manifest.manifest_format(location)
    if kind == "parquet":
        named_images.check_exists(spark, location)
        stored = spark.read.parquet(named_images.path_for_spark(location))
        find_columns(stored.columns, location)
        task = functools.partial(_read_parquet, location=location, image_root=image_root)
        rows = map_in_arrow(stored, task, ANNOTATIONS_DDL)
    else:
        records = functools.partial(_manifest_records, location=location, image_root=image_root, kind=kind)
        rows = rows_of_one_file(spark, location, records)
    return merged_by_path(rows)


def _manifest_records(stream: BinaryIO, location: str, image_root: str, kind: str) -> Iterator[Annotation]:
    path_of = functools.partial(resolve_reference, root=image_root)
    read = manifest.read_csv if kind == "csv" else manifest.read_json
    return manifest.read_rows(read(stream, location), location, path_of)


def _read_parquet(batches: Batches, location: str, image_root: str) -> Iterator[pa.RecordBatch]:
    """Reads the rows of a Parquet manifest in a task."""
    path_of = functools.partial(resolve_reference, root=image_root)
    return annotation_batches(
        annotation_of_row(row, columns, path_of, where)
        for names, rows in located_rows(batches, location)
        for columns in (find_columns(names, location),)
        for row, where in rows
    )
