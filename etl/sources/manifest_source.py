"""Manifests: a CSV, JSON or Parquet file that names images one by one, with labels or boxes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from ...spark.python_tasks import map_in_arrow
from ..annotations.manifest import annotation_of_row, find_columns, manifest_format, read_csv, read_json, read_rows
from ..annotations.record import ANNOTATIONS_DDL, Annotation, annotation_batches
from ..annotations.references import resolve_reference
from .annotation_frames import check_exists, located_rows, merged_by_path, path_for_spark, rows_of_one_file
from .listing import Listing
from .named_images import list_named_images
from .source import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from .annotation_frames import Batches


def list_manifest(spark: SparkSession, source: Source) -> Listing:
    """Lists the images that a manifest in CSV, JSON (an array or lines) or Parquet names; rows of one path are joined.

    The suffix of its name gives the format.
    """
    return list_named_images(spark, source, manifest_annotations(spark, source))


def manifest_annotations(spark: SparkSession, source: Source) -> DataFrame:
    """Reads a manifest as rows of `ANNOTATIONS_DDL`, one per path; `annotation_errors` names what is wrong with it."""
    location, image_root = source.name, source.image_root or "/"
    kind = manifest_format(location)
    if kind == "parquet":
        check_exists(spark, location)
        stored = spark.read.parquet(path_for_spark(location))
        find_columns(stored.columns, location)
        task = functools.partial(_read_parquet, location=location, image_root=image_root)
        rows = map_in_arrow(stored, task, ANNOTATIONS_DDL)
    else:
        records = functools.partial(_manifest_records, location=location, image_root=image_root, kind=kind)
        rows = rows_of_one_file(spark, location, records)
    return merged_by_path(rows)


def _manifest_records(stream: BinaryIO, location: str, image_root: str, kind: str) -> Iterator[Annotation]:
    path_of = functools.partial(resolve_reference, root=image_root)
    yield from read_rows((read_csv if kind == "csv" else read_json)(stream, location), location, path_of)


def _read_parquet(batches: Batches, location: str, image_root: str) -> Iterator[pa.RecordBatch]:
    """Reads the rows of a Parquet manifest in a task."""
    path_of = functools.partial(resolve_reference, root=image_root)
    yield from annotation_batches(
        annotation_of_row(row, columns, path_of, where)
        for names, rows in located_rows(batches, location)
        for columns in (find_columns(names, location),)
        for row, where in rows
    )
