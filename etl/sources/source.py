"""Where the images of an ingest come from: one frozen value that every source's lister takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ...errors import InvalidArgumentError
from ...locations import absolute_path, folder_of, has_scheme, scheme_of
from ..files import CLASS_FOLDERS, COCO, MANIFEST, check_layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Hadoop reads single files by these, and lists nothing.
_WEB = ("http", "https", "ftp", "sftp")


@dataclass(frozen=True)
class Source:
    """Where the images of an ingest come from."""

    location: str | Path | DataFrame  # Folder, manifest, or DataFrame
    layout: str = CLASS_FOLDERS  # One of `LAYOUTS`; without meaning for a DataFrame
    annotations: str | None = None  # COCO: an instances file whose name is not one of the usual ones
    images: str | None = None  # Manifest and DataFrame: the folder that relative paths start from

    def __post_init__(self) -> None:
        check_layout(self.layout)
        if self.is_frame and not hasattr(self.location, "mapInArrow"):
            raise InvalidArgumentError(
                f"source = {self.location!r} is not a path, URI or Spark DataFrame; give one of these"
            )
        for name, place in (
            ("source", None if self.is_frame else str(self.location)),
            ("annotations", self.annotations),
            ("images", self.images),
        ):
            if place is not None and has_scheme(place) and scheme_of(place) in _WEB:
                raise InvalidArgumentError(
                    f"{name} = {place!r} is a web address, whose files cannot be listed; download them into a folder, "
                    "or give the URI of an object store"
                )
        if self.annotations is not None and (self.is_frame or self.layout != COCO):
            raise InvalidArgumentError(f"annotations={self.annotations!r} is for layout 'coco' alone; leave it out")
        if self.images is not None and not self.is_frame and self.layout != MANIFEST:
            raise InvalidArgumentError(f"images={self.images!r} is for manifests and DataFrames; leave it out")

    @property
    def is_frame(self) -> bool:
        """Whether the source is a DataFrame rather than a location."""
        return not isinstance(self.location, (str, Path))

    @property
    def frame(self) -> DataFrame:
        """The DataFrame, if `is_frame`."""
        return cast("DataFrame", self.location)

    @property
    def name(self) -> str:
        """The source as messages and the table's history call it."""
        return "DataFrame" if self.is_frame else str(self.location)

    @property
    def folder(self) -> str:
        """The absolute path or URI of a source folder."""
        return absolute_path(str(self.location))

    @property
    def image_root(self) -> str | None:
        """The folder that relative paths start from: `images`, a manifest's own folder, or None for a DataFrame.

        If the manifest is a link, its images lie next to the link.
        """
        if self.images is not None:
            return absolute_path(self.images)
        return None if self.is_frame else folder_of(self.name)
