"""Sources: the files of each with their annotations, as a Spark DataFrame, and how their bytes are read.

Local and mounted files (`file:`) are listed and read by the Python workers, which is what makes an ingest as fast as
Pillow alone. Any other URI (`s3a`, `abfss`, `gs`, `dbfs`, `hdfs`) goes through Spark's `binaryFile`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ...errors import InvalidArgumentError
from ...locations import absolute_path
from ..files.class_folders import Wanted
from ..files.layouts import CLASS_FOLDERS, FOLDER_LAYOUTS, check_layout
from .annotated import ANNOTATED_LAYOUTS, COCO, MANIFEST, VOC, list_coco, list_manifest, list_voc
from .dataframe_source import list_frame
from .folders import list_folder
from .listing import Listing, completed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAYOUTS = (*FOLDER_LAYOUTS, *ANNOTATED_LAYOUTS)


@dataclass(frozen=True)
class Source:
    """Where the images of an ingest come from.

    Attributes:
        location: Folder, manifest, or DataFrame.
        layout: One of `LAYOUTS`; means nothing for a DataFrame.
        annotations: COCO: an instances file that has no usual name.
        images: Manifest and DataFrame: the folder that relative paths start from.
    """

    location: str | Path | DataFrame
    layout: str = CLASS_FOLDERS
    annotations: str | None = None
    images: str | None = None

    @property
    def is_frame(self) -> bool:
        """Whether the source is a DataFrame rather than a place."""
        return not isinstance(self.location, (str, Path))

    @property
    def name(self) -> str:
        """The source as messages and the table's history call it."""
        return "DataFrame" if self.is_frame else str(self.location)

    def check(self) -> None:
        """Checks what can be checked without looking at the source.

        Raises:
            UnknownLayoutError: If the layout is not one that lakelens reads.
            InvalidArgumentError: If an argument belongs to another layout.
        """
        check_layout(self.layout, LAYOUTS)
        if self.is_frame and not hasattr(self.location, "mapInArrow"):
            raise InvalidArgumentError(
                f"source = {self.location!r} is not a path, URI or Spark DataFrame; give one of these"
            )
        if self.annotations is not None and (self.is_frame or self.layout != COCO):
            raise InvalidArgumentError(f"annotations={self.annotations!r} is for layout 'coco' alone; leave it out")
        if self.images is not None and not self.is_frame and self.layout != MANIFEST:
            raise InvalidArgumentError(f"images={self.images!r} is for manifests and DataFrames; leave it out")


def list_source(spark: SparkSession, source: Source) -> Listing:
    """Lists a source that `Source.check` has passed.

    Raises:
        SourceNotFoundError: If it does not exist or cannot be listed.
        EmptySourceError: If it lacks what its layout wants.
        InvalidArgumentError: If two folders name the same class, or an argument does not fit.
    """
    if source.is_frame:
        return list_frame(spark, cast("DataFrame", source.location), source.images)
    if source.layout == MANIFEST:  # as it was written: the images lie next to the link, if it is one
        return list_manifest(spark, str(source.location), source.images)
    location = absolute_path(str(source.location))
    if source.layout == VOC:
        return list_voc(spark, location)
    if source.layout == COCO:
        return list_coco(spark, location, source.annotations)
    root, files, read = list_folder(spark, location, Wanted(source.layout))
    return Listing(source.name, completed(files), root, read)
