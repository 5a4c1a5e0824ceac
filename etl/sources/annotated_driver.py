"""Lists small local sources with annotations on the driver, which is faster than the Spark jobs of `annotated`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...locations import has_scheme
from ...spark.port import is_local
from ..annotations.record import BOXES_DDL, Annotation, row_of
from ..files.class_folders import ListedFile, Wanted, list_top, list_within
from ..files.driver_limits import LISTING_S, MOST_ANNOTATION_FILES, TooMuchError
from ..files.walk import local_uri
from ..model import schema
from ..spark.local_frames import local_frame
from .listing import IGNORED, LABEL_RANK, PROBLEMS, PROBLEMS_DDL, Listing, completed
from .voc_frames import match_on_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROW_DDL = (
    f"{schema.PATH} STRING, {schema.LABEL_NAME} STRING, boxes STRING, {schema.SPLIT} STRING, declared_width INT, "
    f"declared_height INT, {PROBLEMS} STRING, {schema.SOURCE_LENGTH} BIGINT, {schema.SOURCE_MODIFIED} BIGINT"
)
_IGNORED_DDL = (
    f"{schema.PATH} STRING, {schema.SOURCE_LENGTH} BIGINT, {schema.SOURCE_MODIFIED} BIGINT, "
    f"{schema.LABEL_NAME} STRING, {LABEL_RANK} INT, {IGNORED} STRING"
)


def list_voc_on_driver(spark: SparkSession, source: str, wanted: Wanted, images: str, other: str) -> Listing | None:
    """Lists a Pascal VOC folder; None where that is not on a disk that the driver shares with all, or is much.

    Args:
        spark: The session.
        source: The folder.
        wanted: What its layout looks for.
        images: What the paths of images hold, where any does.
        other: Why other images are passed over then.
    """
    if has_scheme(source) or not is_local(spark):
        return None
    root = os.fsencode(source)
    top = list_top(root)
    top.check(source, wanted)
    try:
        listed = list_within(root, top.names, wanted, MOST_ANNOTATION_FILES, LISTING_S)
    except TooMuchError:
        return None
    found = [file for file in listed if file.ignored is None]
    masks: set[str] = set()
    if any(images in file.path for file in found if _is_image(file)):
        masks = {file.path for file in found if _is_image(file) and images not in file.path}
    ignored = [file._replace(ignored=other) if file.path in masks else file for file in listed]
    found = [file for file in found if file.path not in masks]
    uri = local_uri(root)
    rows = _annotated(spark, match_on_driver((file.path for file in found), uri), found)
    others = local_frame(spark, [file[:6] for file in ignored if file.ignored is not None], _IGNORED_DDL)
    files = rows.unionByName(completed(_with_time(others)))
    return Listing(source, files, uri, has_annotations=True, is_at_hand=True)


def _is_image(file: ListedFile) -> bool:
    return not file.path.lower().endswith((".xml", ".txt"))


def _annotated(spark: SparkSession, annotations: Iterable[Annotation], found: Iterable[ListedFile]) -> DataFrame:
    from pyspark.sql import functions as F

    stamps = {file.path: (file.length, file.modified_us) for file in found}
    rows: list[tuple[Any, ...]] = []
    for annotation in annotations:
        row = row_of(annotation)
        row |= {name: json.dumps(row[name]) for name in ("boxes", PROBLEMS)}
        rows.append((*row.values(), *stamps.get(annotation.path, (-1, 0))))
    frame = _with_time(local_frame(spark, rows, _ROW_DDL))
    for name, kind in (("boxes", BOXES_DDL), (PROBLEMS, PROBLEMS_DDL)):
        frame = frame.withColumn(name, F.from_json(name, kind))
    return completed(frame)


def _with_time(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.withColumn(schema.SOURCE_MODIFIED, F.timestamp_micros(schema.SOURCE_MODIFIED))
