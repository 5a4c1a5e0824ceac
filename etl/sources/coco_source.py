"""Folders with COCO instances files: the images that they annotate, each with its boxes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from ...errors import EmptySourceError
from ...locations import absolute_path, has_scheme
from ...spark.port import count_rows, forget, keep
from ..annotations.coco import CocoFile, find_coco_files, named_coco_file, read_coco
from ..annotations.record import Annotation
from ..annotations.references import relative_reference, resolve_reference, without_drive
from ..files import COCO, IMAGE_SUFFIXES, OTHER_FOLDER, Wanted
from ..model import schema
from .annotation_frames import match_images, merged_by_path, rows_of_one_file
from .folders import FolderListing, list_folder
from .listing import IGNORED, REFUSED, SEEN, Listing, raise_refusal
from .named_images import annotated_listing
from .source import Source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def list_coco(spark: SparkSession, source: Source) -> Listing:
    """Lists a folder with COCO instances files.

    Without `Source.annotations` these are the files that have a usual name. The file names of a named one start from
    the folders that a usual name means, and else from the source: from the first of them in which an image of that
    name is.
    """
    folder = list_folder(spark, source.folder, Wanted(COCO, IMAGE_SUFFIXES | {"json"}))
    with ExitStack() as on_error:
        listing = _list_annotated(spark, source, folder, on_error)
        on_error.pop_all()
    return listing


def _list_annotated(spark: SparkSession, source: Source, folder: FolderListing, on_error: ExitStack) -> Listing:
    from pyspark.sql import functions as F

    files = keep(folder.files)
    on_error.callback(forget, files)
    is_json = F.lower(schema.PATH).endswith(".json")
    ignored = files.where(F.col(IGNORED).isNotNull())
    images = files.where(F.col(IGNORED).isNull() & ~is_json)
    is_looked_at = F.coalesce(F.col(IGNORED).startswith(REFUSED) | F.col(IGNORED).startswith(SEEN), F.lit(True))
    json_paths, image_folders = _places(files.where(is_looked_at), is_json)
    if source.annotations is not None:
        path = relative_reference(absolute_path(source.annotations), source.folder)
        found = [(source.annotations, named_coco_file(source.annotations, path))]
    else:
        found = _coco_files(source.folder, folder.root, json_paths)
    frames, folders = [], []
    for location, file in found:
        candidates = _candidates(folder.root, file, image_folders)
        frame, below = _read_coco(spark, source.folder, location, file, candidates, images, on_error)
        frames.append(frame)
        folders.append(below)
    is_annotated = functools.reduce(lambda one, other: one | other, [_is_below(folder.root, one) for one in {*folders}])
    ignored = ignored.unionByName(images.where(~is_annotated).withColumn(IGNORED, F.lit(OTHER_FOLDER)))
    images = images.where(is_annotated)
    merged = merged_by_path(functools.reduce(lambda one, other: one.unionByName(other), frames))
    matched = match_images(merged, images.select(schema.PATH))
    listing = annotated_listing(dataclasses.replace(folder, files=images), matched, ignored)
    return dataclasses.replace(listing, cached=(files, *frames))


def coco_annotations(spark: SparkSession, location: str, image_root: str, split: str | None = None) -> DataFrame:
    """Reads a COCO instances file."""
    records = functools.partial(_coco_records, location=location, image_root=image_root, split=split)
    return keep(rows_of_one_file(spark, location, records))


def _places(files: DataFrame, is_json: Column) -> tuple[list[str], list[str]]:
    """Finds the JSON files, and the folders that hold other files, by one job."""
    from pyspark.sql import functions as F

    place = F.when(is_json, F.col(schema.PATH)).otherwise(F.regexp_replace(schema.PATH, "[^/]*$", ""))
    rows = files.select(IGNORED, is_json, place).distinct().collect()
    raise_refusal([ignored for ignored, _, _ in rows if ignored is not None])
    found = [(is_json, place) for ignored, is_json, place in rows if ignored is None]
    return [place for is_json, place in found if is_json], [place for is_json, place in found if not is_json]


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


def _candidates(root: str, file: CocoFile, image_folders: Sequence[str]) -> list[str]:
    """Returns the folders that a COCO file may mean and that hold images; the first one it may mean if none does."""
    found = [
        folder
        for folder in file.image_folders
        if any(place.startswith(_prefix_of(root, folder)) for place in image_folders)
    ]
    return found or list(file.image_folders[:1])


def _read_coco(
    spark: SparkSession,
    source: str,
    location: str,
    file: CocoFile,
    folders: Sequence[str],
    images: DataFrame,
    on_error: ExitStack,
) -> tuple[DataFrame, str]:
    """Reads a COCO file, and finds which of the folders that it may mean holds its images.

    Without an image of its names in any of them, it is the first.
    """

    def read(folder: str) -> DataFrame:
        image_root = "/".join(part for part in (source.rstrip("/"), folder) if part)
        frame = coco_annotations(spark, location, image_root, file.split)
        on_error.callback(forget, frame)
        return frame

    for folder in folders:
        frame = read(folder)
        if len(folders) == 1 or _has_common_path(frame, images):
            return frame, folder
        forget(frame)
    return read(folders[0]), folders[0]


def _has_common_path(one: DataFrame, two: DataFrame) -> bool:
    # Sending one side to all tasks would be a job of its own.
    common = one.join(two.select(schema.PATH).hint("merge"), schema.PATH, "left_semi")
    return bool(count_rows(common.limit(1)))


def _is_below(root: str, folder: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(schema.PATH).startswith(_prefix_of(root, folder))


def _prefix_of(root: str, folder: str) -> str:
    """Writes a folder below the source as paths of the listing begin."""
    below = quote(folder) if root.startswith("file:///") else folder
    return "/".join(part for part in (root.rstrip("/"), below) if part) + "/"


def _coco_records(stream: BinaryIO, location: str, image_root: str, split: str | None) -> Iterator[Annotation]:
    def path_of(name: str) -> str:
        return resolve_reference(without_drive(name), image_root)

    yield from read_coco(stream, location).annotations(path_of, split)
