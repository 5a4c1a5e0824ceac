"""Where the images of an ingest come from, and the listing of it: one row per file, without reading one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from ...errors import InvalidArgumentError, SourceNotFoundError, UsageError
from ...locations import absolute_path, folder_of, has_scheme, scheme_of
from ...spark.port import forget, keep
from ..annotations.record import ANNOTATION_ROWS, encodable
from ..files import CLASS_FOLDERS, COCO, MANIFEST, NUMBERED_FOLDERS, ListedFile, check_layout
from ..model import schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    # Adds a column `content` to rows that have a column `path`; the number bounds the files of one Arrow batch.
    ReadContents = Callable[[DataFrame, int], DataFrame]

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


IGNORED = "ignored"
# The number of a class folder, such as 1 of 001.ak47: new classes are numbered in this order.
LABEL_RANK = "label_rank"
PROBLEMS = "problems"

FOLDER_LISTING = pa.schema(
    [
        (schema.PATH, pa.string()),
        *schema.STAMP,
        (schema.LABEL_NAME, pa.string()),
        (LABEL_RANK, pa.int32()),
        (IGNORED, pa.string()),
    ]
)
_OF_ANNOTATIONS = (schema.SPLIT, "boxes", "declared_width", "declared_height", PROBLEMS)
_LISTED = pa.schema(
    [
        *FOLDER_LISTING,
        *(ANNOTATION_ROWS.field(name) for name in _OF_ANNOTATIONS),
        (schema.ANNOTATION_HASH, pa.string()),
        # Digest of the content if the source has one; it then decides about a change, with size and time.
        (schema.CONTENT_HASH, pa.string()),
    ]
)


# The only reason of a source that cannot be listed: the error that its user gets, by name and message.
REFUSED = "refused: "
# What a task sees in the source folder: an executor without its mount sees another thing than the others.
SEEN = "seen: "


def refusal(error: UsageError) -> str:
    """Writes an error as a reason for `ignored`, by which a task tells the driver that it cannot list the source."""
    return encodable(f"{REFUSED}{type(error).__name__}: {error}")


def sight(kind: str, root: str) -> str:
    """Writes what a task sees in the source folder as a reason for `ignored`."""
    return encodable(f"{SEEN}{kind} in {root}")


def raise_refusal(reasons: Collection[str]) -> None:
    """Raises the error that a task has found, or that some see other things than others in the source folder."""
    found = next((reason for reason in reasons if reason.startswith(REFUSED)), None)
    if found is not None:
        name, _, message = found.removeprefix(REFUSED).partition(": ")
        raise {error.__name__: error for error in (SourceNotFoundError, InvalidArgumentError)}[name](message)
    seen = sorted(reason.removeprefix(SEEN) for reason in reasons if reason.startswith(SEEN))
    if len(seen) > 1:
        raise SourceNotFoundError(
            f"some executors see {', others '.join(seen)}: mount the folder on each; if it was filled or emptied just "
            "now, ingest again"
        )


def has_numbered_folders(seen: Collection[str]) -> bool:
    """Returns whether the tasks have seen numbered class folders."""
    return any(reason.startswith(SEEN + NUMBERED_FOLDERS) for reason in seen)


@dataclass(frozen=True)
class Listing:
    """The files of a source."""

    # One row per file and one per thing that is ignored, with the reason in `ignored`: `path`, `source_length`,
    # `source_modified`, and the columns of annotations, null where the layout has none
    files: DataFrame
    # The folder's URI, below which recorded paths that are not listed no longer exist; None without one
    root: str | None = None
    # How Spark reads the bytes; None when the Python workers open the local paths themselves
    read_contents: ReadContents | None = None
    has_annotations: bool = False  # Whether boxes and problems may be there
    # Whether the names of class folders stay as they are, if Spark has listed them; else the tasks tell it
    keeps_names: bool | None = None
    # What Spark keeps for this listing until `release`. It has to go: Spark would give a later listing of the same
    # place the files of this one
    cached: tuple[DataFrame, ...] = ()

    def described(self, aliases: Mapping[str, str], classes: Collection[str] | None = None) -> Listing:
        """Returns the same listing with a digest of each file's annotation, and with today's names of renamed classes.

        The digest is of what the source says, under its own names of classes, without the boxes that are not wanted:
        a box that was left out makes its file a changed one as soon as its class is wanted.
        """
        from pyspark.sql import functions as F

        names = F.create_map(*[F.lit(text) for pair in aliases.items() for text in pair]) if aliases else None

        def renamed(name: Column) -> Column:
            return name if names is None else F.coalesce(F.try_element_at(names, name), name)

        files = self.files
        if self.has_annotations:
            boxes = F.col("boxes")
            if classes is not None:
                boxes = F.filter("boxes", lambda box: renamed(box["label_name"]).isin(*classes))
            others = (schema.SPLIT, "declared_width", "declared_height", PROBLEMS)
            annotation = F.struct(schema.LABEL_NAME, boxes.alias("boxes"), *others)
            files = files.withColumn(schema.ANNOTATION_HASH, F.sha2(F.to_json(annotation), 256))
        if names is not None:
            boxes = F.transform("boxes", lambda box: box.withField("label_name", renamed(box["label_name"])))
            files = files.withColumns({schema.LABEL_NAME: renamed(F.col(schema.LABEL_NAME)), "boxes": boxes})
        return dataclasses.replace(self, files=files)

    def kept(self) -> Listing:
        """Returns the same listing with files that Spark keeps, so that they are found once."""
        files = keep(self.files)
        return dataclasses.replace(self, files=files, cached=(*self.cached, files))

    def release(self) -> None:
        """Lets Spark forget what it keeps."""
        for frame in self.cached:
            forget(frame)


def completed(files: DataFrame) -> DataFrame:
    """Adds the columns that a layout has not, and puts all into one order."""
    from pyspark.sql import functions as F

    columns = [
        F.col(name) if name in files.columns else F.lit(None).cast(schema.sql_type(kind)).alias(name)
        for name, kind in zip(_LISTED.names, _LISTED.types, strict=True)
    ]
    return files.select(*columns)


def folder_batch(rows: Sequence[ListedFile]) -> pa.RecordBatch:
    """Packs rows into an Arrow batch of `FOLDER_LISTING`."""
    values = list(zip(*rows, strict=True))[: len(FOLDER_LISTING)]
    columns = [pa.array(column, kind) for column, kind in zip(values, FOLDER_LISTING.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=FOLDER_LISTING)
