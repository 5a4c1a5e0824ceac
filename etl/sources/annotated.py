"""Sources whose annotations lie beside the images: Pascal VOC, COCO instances, manifests."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...errors import EmptySourceError, InvalidArgumentError, SourceNotFoundError
from ...locations import absolute_path, folder_of, has_scheme, scheme_of
from ..annotations.coco import CocoFile, find_coco_files, named_coco_file
from ..annotations.record import ANNOTATIONS_DDL, IMAGE_MISSING, PATH_UNUSABLE
from ..annotations.references import relative_reference
from ..files.class_folders import Wanted
from ..files.walk import IMAGE_SUFFIXES, local_path
from ..model import schema
from .annotation_frames import coco_annotations, manifest_annotations, match_images, merged_by_path
from .contents import read_contents
from .folders import list_folder, list_folder_by_spark
from .listing import IGNORED, PROBLEMS, Listing, completed
from .voc_frames import voc_annotations

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from .listing import ReadContents

VOC = "voc"
COCO = "coco"
MANIFEST = "manifest"
ANNOTATED_LAYOUTS = (VOC, COCO, MANIFEST)

# VOC keeps masks of the same names in SegmentationClass/ and SegmentationObject/, which are not images.
_VOC_IMAGES = "/JPEGImages/"
OTHER_FOLDER = "other_folder"
_STATUS_DDL = f"{ANNOTATIONS_DDL}, {schema.SOURCE_LENGTH} BIGINT, {schema.SOURCE_MODIFIED} TIMESTAMP"


def list_voc(spark: SparkSession, source: str) -> Listing:
    """Lists a Pascal VOC folder: JPEGImages, Annotations, ImageSets.

    Raises:
        SourceNotFoundError: If the folder does not exist.
    """
    from pyspark.sql import functions as F

    wanted = Wanted(VOC, IMAGE_SUFFIXES | {"xml", "txt"})
    root, files, read = list_folder(spark, source, wanted)
    files = files.persist()
    ignored = files.where(F.col(IGNORED).isNotNull())
    found = files.where(F.col(IGNORED).isNull())
    is_image = ~F.lower(schema.PATH).rlike(r"\.(xml|txt)$")
    if found.where(is_image & F.col(schema.PATH).contains(_VOC_IMAGES)).limit(1).count():
        masks = found.where(is_image & ~F.col(schema.PATH).contains(_VOC_IMAGES))
        ignored = ignored.unionByName(masks.withColumn(IGNORED, F.lit(OTHER_FOLDER)))
        found = found.where(~is_image | F.col(schema.PATH).contains(_VOC_IMAGES))
    annotations = voc_annotations(spark, found.select(schema.PATH), root, is_local=read is None)
    listing = _annotated(source, root, annotations, found, ignored, read)
    return dataclasses.replace(listing, cached=(files,))


def list_coco(spark: SparkSession, source: str, annotations: str | None) -> Listing:
    """Lists a folder with COCO instances files.

    Args:
        spark: The session.
        source: The folder.
        annotations: One instances file, in the folder or elsewhere; None finds those that have a usual name. Its file
            names start from the folders that a usual name means, and else from `source`: from the first of them in
            which an image of that name is.

    Raises:
        SourceNotFoundError: If the folder or file does not exist.
        EmptySourceError: If no instances file has a usual name.
    """
    from pyspark.sql import functions as F

    root, files, read = list_folder(spark, source, Wanted(COCO, IMAGE_SUFFIXES | {"json"}))
    files = files.persist()
    is_json = F.lower(schema.PATH).endswith(".json")
    ignored = files.where(F.col(IGNORED).isNotNull())
    images = files.where(F.col(IGNORED).isNull() & ~is_json)
    if annotations is not None:
        found = [(annotations, named_coco_file(annotations, relative_reference(absolute_path(annotations), source)))]
    else:
        json_paths = [row[0] for row in files.where(F.col(IGNORED).isNull() & is_json).select(schema.PATH).collect()]
        found = _coco_files(source, root, json_paths)
    instances = [_read_coco(spark, source, root, *file, images) for file in found]
    frames, folders = [frame for frame, _ in instances], [folder for _, folder in instances]
    below = functools.reduce(lambda one, other: one | other, [_is_below(root, folder) for folder in set(folders)])
    outside = images.where(~below).withColumn(IGNORED, F.lit(OTHER_FOLDER))
    images = images.where(below)
    merged = merged_by_path(functools.reduce(lambda one, other: one.unionByName(other), frames))
    matched = match_images(merged, images.select(schema.PATH))
    listing = _annotated(source, root, matched, images, ignored.unionByName(outside), read)
    return dataclasses.replace(listing, cached=(files, *frames))


def list_manifest(spark: SparkSession, source: str, images: str | None) -> Listing:
    """Lists the images that a manifest names.

    Args:
        spark: The session.
        source: CSV, JSON (an array of objects, or one in each line) or Parquet with a path and a label or boxes.
        images: Folder that relative paths start from; the manifest's own when None.

    Raises:
        SourceNotFoundError: If there is no such file.
        AnnotationFileError: If it lacks a column.
    """
    image_root = absolute_path(images) if images is not None else folder_of(source)
    annotations = manifest_annotations(spark, source, image_root)
    return dataclasses.replace(list_annotated_paths(spark, source, annotations, image_root), cached=(annotations,))


def list_annotated_paths(spark: SparkSession, name: str, annotations: DataFrame, image_root: str | None) -> Listing:
    """Lists images that are named one by one, and finds their sizes and times.

    Args:
        spark: The session.
        name: The source as the user wrote it.
        annotations: Rows of `ANNOTATIONS_DDL`, one per path.
        image_root: Folder that holds the images when they are not local.

    Raises:
        InvalidArgumentError: If none of them is in the file system of `image_root`.
    """
    from pyspark.sql import functions as F

    # What stands for the path of a row without one is in no file system.
    has_path = ~F.coalesce(F.exists(PROBLEMS, _is_without_path), F.lit(False))
    scheme = scheme_of(image_root) if image_root is not None and has_scheme(image_root) else "file"
    is_local = scheme == "file"
    is_stray = has_path & ~F.col(schema.PATH).startswith(f"{scheme}:")
    stray = annotations.where(is_stray).select(schema.PATH).head()
    if stray is not None:
        if not annotations.where(has_path & ~is_stray).head(1):
            raise InvalidArgumentError(
                f"{name} names no image in the file system of {image_root or 'this machine'}, but such as {stray[0]}; "
                "give the folder that holds them: images='s3a://bucket/folder' (--images)"
            )
        elsewhere = with_problem(PATH_UNUSABLE, f"in another file system than the other images, which are in {scheme}:")
        problems = F.when(is_stray, elsewhere).otherwise(F.col(PROBLEMS))
        annotations, has_path = annotations.withColumn(PROBLEMS, problems), has_path & ~is_stray
    if is_local:
        files = annotations.mapInArrow(_stat_local, _STATUS_DDL)
        return Listing(name, completed(files), has_annotations=True)
    _, found = list_folder_by_spark(spark, str(image_root), Wanted(MANIFEST))
    stamped = annotations.join(found.select(schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED), "path", "left")
    missing = has_path & F.col(schema.SOURCE_LENGTH).isNull()
    problems = F.when(missing, with_problem(IMAGE_MISSING, "no such file")).otherwise(F.col(PROBLEMS))
    files = stamped.withColumn(PROBLEMS, problems)
    return Listing(
        name,
        completed(stamped_files(files)),
        read_contents=functools.partial(read_contents, spark),
        has_annotations=True,
    )


def _annotated(
    name: str,
    root: str,
    annotations: DataFrame,
    found: DataFrame,
    ignored: DataFrame,
    read: ReadContents | None,
) -> Listing:
    """Joins annotations, one row per path, with sizes and times, and adds the skipped files."""
    stamps = found.select(schema.PATH, schema.SOURCE_LENGTH, schema.SOURCE_MODIFIED)
    files = stamped_files(annotations.join(stamps, schema.PATH, "left"))
    listed = completed(files).unionByName(completed(ignored))
    return Listing(name, listed, root, read, has_annotations=True)


def _coco_files(source: str, root: str, json_paths: list[str]) -> list[tuple[str, CocoFile]]:
    """Finds the instances files of a folder by their names, each with its location."""
    relative = {relative_reference(path, root) or path: path for path in json_paths}
    files = find_coco_files(list(relative))
    if not files:
        seen = ", ".join(sorted(relative)[:5]) or "none"
        raise EmptySourceError(
            f"{source} has no COCO instances file under a usual name (annotations/instances_train2017.json, "
            f"train/_annotations.coco.json); JSON files there: {seen}. Name yours: annotations='path/to/file.json'"
        )
    here = source.rstrip("/")
    return [(relative[file.path] if has_scheme(source) else f"{here}/{file.path}", file) for file in files]


def _read_coco(
    spark: SparkSession, source: str, root: str, location: str, file: CocoFile, images: DataFrame
) -> tuple[DataFrame, str]:
    """Reads a COCO file, and finds which of the folders that it may mean holds its images.

    Without an image of its names in any of them, it is the first that holds images at all.
    """
    candidates = [folder for folder in file.image_folders if images.where(_is_below(root, folder)).limit(1).count()]
    folders = candidates or list(file.image_folders[:1])

    def read(folder: str) -> DataFrame:
        image_root = "/".join(part for part in (source.rstrip("/"), folder) if part)
        return coco_annotations(spark, location, image_root, file.split)

    for folder in folders:
        frame = read(folder)
        if len(folders) == 1 or frame.join(images.select(schema.PATH), schema.PATH, "left_semi").limit(1).count():
            return frame, folder
        frame.unpersist()
    return read(folders[0]), folders[0]


def _is_below(root: str, folder: str) -> Column:
    from urllib.parse import quote

    from pyspark.sql import functions as F

    below = quote(folder) if root.startswith("file:///") else folder
    return F.col(schema.PATH).startswith("/".join(part for part in (root.rstrip("/"), below) if part) + "/")


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
    import pyarrow as pa

    from ..annotations.record import annotations_arrow_schema

    fields = [*annotations_arrow_schema()]
    fields += [pa.field(schema.SOURCE_LENGTH, pa.int64())]
    fields += [pa.field(schema.SOURCE_MODIFIED, pa.timestamp("us", tz="UTC"))]
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
        yield pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))


def _reason_of(error: OSError | ValueError) -> str | None:
    """Gives the reason for quarantine; None where the file may exist, so that reading it finds the reason."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return PATH_UNUSABLE
    gone = isinstance(error, ValueError) or error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
    return IMAGE_MISSING if gone else None


__all__ = ["ANNOTATED_LAYOUTS", "SourceNotFoundError", "list_annotated_paths", "list_coco", "list_manifest", "list_voc"]
