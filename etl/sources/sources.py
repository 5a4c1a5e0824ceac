"""Sources: the files of each with their annotations, as a Spark DataFrame, and how their bytes are read.

Local and mounted files (`file:`) are listed and read by the Python workers, which is what makes an ingest as fast as
Pillow alone. Any other URI (`s3a`, `abfss`, `gs`, `dbfs`, `hdfs`) goes through Spark's `binaryFile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..files import COCO, FOLDER_LAYOUTS, MANIFEST, VOC
from .annotated_folders import list_coco, list_voc
from .folders import list_class_folders
from .image_rows import list_frame, list_manifest
from .source import Listing, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LISTERS: Mapping[str, Callable[[SparkSession, Source], Listing]] = {
    VOC: list_voc,
    COCO: list_coco,
    MANIFEST: list_manifest,
}


def list_source(spark: SparkSession, source: Source, *, keep_names: bool | None = None) -> Listing:
    """Lists a source; `keep_names` as in `Recipe.keep_folder_names`."""
    if not source.is_frame and source.layout in FOLDER_LAYOUTS:
        return list_class_folders(spark, source, keep_names=keep_names)
    return (list_frame if source.is_frame else _LISTERS[source.layout])(spark, source)
