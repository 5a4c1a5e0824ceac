"""Where the images of an ingest come from, the listing of it (one row per file), and the bytes of its files."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from ...errors import InvalidArgumentError, SourceNotFoundError, UsageError
from ...locations import absolute_path, folder_of, has_scheme, scheme_of
from ...spark.port import forget, keep, parallelism
from ...spark.workers import map_in_arrow
from ..annotations.record import ANNOTATION_ROWS, encodable
from ..files import CLASS_FOLDERS, COCO, MANIFEST, NUMBERED_FOLDERS, check_layout, local_path
from ..model import schema
from ..spark.catalog import pattern_of
from ..spark.writing_session import set_batch_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
        """The folder that relative paths start from: `images`, a manifest's own (its link's), or None for a frame."""
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
    root: str = ""  # The folder's URI, below which recorded paths that are not listed no longer exist; "" without one
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

        The digest leaves out boxes that are not wanted: their file is a changed one as soon as their class is wanted.
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


def has_problem(reason: str) -> Column:
    """Whether a listed file has a problem of a reason."""
    from pyspark.sql import functions as F

    return F.coalesce(F.exists(PROBLEMS, lambda found: found["reason"] == reason), F.lit(False))


def completed(files: DataFrame) -> DataFrame:
    """Adds the columns that a layout has not, and puts all into one order."""
    from pyspark.sql import functions as F

    columns = [
        F.col(name) if name in files.columns else F.lit(None).cast(schema.sql_type(kind)).alias(name)
        for name, kind in zip(_LISTED.names, _LISTED.types, strict=True)
    ]
    return files.select(*columns)


CONTENT = "content"
# What Spark raises where the bytes of a row are others than those that were listed.
OTHER_ROWS = (
    "the query of the DataFrame gives other rows each time it is computed, and Spark had to compute it again: write it "
    "to a table first, and ingest what is read from that"
)
_HASHED_AT_ONCE = 64
# A Connect session looks for the files when it reads them.
_GONE = re.compile(r"FileNotFoundException|\[PATH_NOT_FOUND\]")


def content_hashes(listing: Listing, files: DataFrame, count: int) -> DataFrame:
    """Has Spark's tasks digest files: rows of `path` and `hash`, which is null where a file cannot be read."""
    from pyspark.sql import functions as F

    if listing.read_contents is not None:
        read = listing.read_contents(files, _HASHED_AT_ONCE)
        return read.select(schema.PATH, F.sha2(CONTENT, 256).alias("hash"))
    tasks = min(count, 2 * parallelism(files.sparkSession))
    paths = files.select(schema.PATH).repartition(tasks)
    return map_in_arrow(paths, _hash_batches, f"{schema.PATH} STRING, hash STRING")


def _hash_file(uri: str) -> str | None:
    digest = hashlib.sha256()
    try:
        with open(local_path(uri), "rb") as file:  # noqa: PTH123  bytes: names that are not UTF-8 are names too
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()


def _hash_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        paths = batch.column(schema.PATH).to_pylist()
        hashes = [_hash_file(path) for path in paths]
        columns = [pa.array(paths, pa.string()), pa.array(hashes, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, [schema.PATH, "hash"])


def read_contents(spark: SparkSession, files: DataFrame, batch_rows: int) -> DataFrame:
    """Adds a column `content` with the bytes of each file, read by Spark; null if the file does not exist."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    # Spark's reader skips empty files.
    empty = F.when(F.col(schema.SOURCE_LENGTH) == 0, F.lit(b""))
    empty_or_absent = files.where(f"{schema.SOURCE_LENGTH} <= 0").withColumn(CONTENT, empty)
    paths = [row[schema.PATH] for row in files.where(f"{schema.SOURCE_LENGTH} > 0").select(schema.PATH).collect()]
    if not paths:
        return empty_or_absent
    set_batch_rows(spark, batch_rows)
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        contents = reader.load([pattern_of(path) for path in paths])
    except AnalysisException as error:
        raise _gone(str(error).splitlines()[0]) from error
    # An outer join would shuffle the bytes, so the other files are added by a union.
    read = contents.select(F.col("path"), F.col("content")).join(F.broadcast(files), schema.PATH)
    return read.unionByName(empty_or_absent)


def failure_of_source(error: Exception, table: str) -> UsageError | None:
    """Returns the typed error when a Spark job failed because its source changed while it was read, else None."""
    # The message may name a file by the target of a mount, not by the source's folder.
    if OTHER_ROWS in str(error):
        return InvalidArgumentError(OTHER_ROWS)
    lines = [line.strip() for line in str(error).splitlines() if _GONE.search(line)]
    ours = next((line for line in lines if table not in line), None)
    return None if ours is None else _gone(ours)


def _gone(what: str) -> SourceNotFoundError:
    return SourceNotFoundError(f"a file went away while it was ingested ({what.strip()[:500]}); run the ingest again")
