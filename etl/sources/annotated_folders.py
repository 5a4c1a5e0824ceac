"""Folders with COCO instances or with Pascal VOC's XML files: the images that they annotate, each with its boxes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

import pyarrow as pa

from ...errors import AnnotationFileError, EmptySourceError
from ...locations import absolute_path, has_scheme
from ...spark.port import count_rows, forget, keep
from ...spark.workers import map_in_arrow
from ..annotations import record, voc
from ..annotations.coco import CocoFile, find_coco_files, named_coco_file, read_coco
from ..annotations.record import ANNOTATIONS_DDL, Annotation, annotation_batches, annotation_of
from ..annotations.references import relative_reference, resolve_reference, without_drive
from ..files import COCO, IMAGE_SUFFIXES, OTHER_FOLDER, VOC, Wanted, local_path
from ..model import schema
from .folders import list_folder
from .named_images import annotated_listing, match_images, merged_by_path, rows_of_one_file
from .source import CONTENT, IGNORED, PROBLEMS, REFUSED, SEEN, Listing, Source, raise_refusal, read_contents

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ..changes.plan import Plan
    from .named_images import Batches


def list_coco(spark: SparkSession, source: Source) -> Listing:
    """Lists a folder with COCO instances files: the file that `Source.annotations` names, or those with usual names."""
    folder = list_folder(spark, source.folder, Wanted(COCO, IMAGE_SUFFIXES | {"json"}))
    with ExitStack() as on_error:
        listing = _list_coco_images(spark, source, folder, on_error)
        on_error.pop_all()
    return listing


def _list_coco_images(spark: SparkSession, source: Source, folder: Listing, on_error: ExitStack) -> Listing:
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
    frames, prefixes = [], set()
    for location, file in found:
        candidates = _candidates(folder.root, file, image_folders)
        frame, below = _read_coco(spark, source.folder, location, file, candidates, images, on_error)
        frames.append(frame)
        prefixes.add(_prefix_of(folder.root, below))
    is_below = [F.col(schema.PATH).startswith(prefix) for prefix in prefixes]
    is_annotated = functools.reduce(lambda one, other: one | other, is_below)
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

    def holds_images(folder: str) -> bool:
        return any(place.startswith(_prefix_of(root, folder)) for place in image_folders)

    return list(filter(holds_images, file.image_folders)) or list(file.image_folders[:1])


def _read_coco(
    spark: SparkSession,
    source: str,
    location: str,
    file: CocoFile,
    folders: Sequence[str],
    images: DataFrame,
    on_error: ExitStack,
) -> tuple[DataFrame, str]:
    """Reads a COCO file, and finds which of the folders that it may mean holds its images; the first if none does."""

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
    # Sending one side to all tasks would take a separate Spark job.
    common = one.join(two.select(schema.PATH).hint("merge"), schema.PATH, "left_semi")
    return bool(count_rows(common.limit(1)))


def _prefix_of(root: str, folder: str) -> str:
    """Writes a folder below the source as paths of the listing begin."""
    below = quote(folder) if root.startswith("file:///") else folder
    return "/".join(part for part in (root.rstrip("/"), below) if part) + "/"


def _coco_records(stream: BinaryIO, location: str, image_root: str, split: str | None) -> Iterator[Annotation]:
    return read_coco(stream, location).annotations(
        lambda name: resolve_reference(without_drive(name), image_root), split
    )


_KEY = "image_key"
_LISTS = "split_lists"
_FILES_AT_ONCE = 500
_IMAGES = "images"
_LIST_NAMES = "the split list"
# VOC keeps masks of the same names in SegmentationClass/ and SegmentationObject/, which are not images.
_VOC_IMAGES = "/JPEGImages/"


def list_voc(spark: SparkSession, source: Source) -> Listing:
    """Lists a Pascal VOC folder: JPEGImages, Annotations, ImageSets."""
    folder = list_folder(spark, source.folder, Wanted(VOC, IMAGE_SUFFIXES | {"xml", "txt"}))
    with ExitStack() as on_error:
        on_error.callback(forget, folder.files)
        listing = _list_voc_images(spark, dataclasses.replace(folder, cached=(keep(folder.files),)))
        on_error.pop_all()
    return listing


def _list_voc_images(spark: SparkSession, folder: Listing) -> Listing:
    from pyspark.sql import functions as F

    ignored = folder.files.where(F.col(IGNORED).isNotNull())
    found = folder.files.where(F.col(IGNORED).isNull())
    is_image, is_in_place = ~F.lower(schema.PATH).rlike(r"\.(xml|txt)$"), F.col(schema.PATH).contains(_VOC_IMAGES)
    if found.where(is_image & is_in_place).limit(1).count():
        masks = found.where(is_image & ~is_in_place)
        ignored = ignored.unionByName(masks.withColumn(IGNORED, F.lit(OTHER_FOLDER)))
        found = found.where(~is_image | is_in_place)
    annotations = voc_annotations(spark, found.select(schema.PATH), folder.root, is_local=folder.read_contents is None)
    return annotated_listing(dataclasses.replace(folder, files=found), annotations, ignored)


def voc_annotations(spark: SparkSession, paths: DataFrame, root: str, *, is_local: bool) -> DataFrame:
    """Reads the XML files and split lists of a Pascal VOC folder, and matches them with its images."""
    from pyspark.sql import functions as F

    # Left to itself, Spark 4.1 looks for Arrow in the type hints and warns that it has found none.
    key_of = F.udf(functools.partial(_key_of, root=root), "string", useArrow=False)
    is_list = F.udf(functools.partial(_is_list, root=root), "boolean", useArrow=False)
    files = paths.select("path").withColumn(_KEY, key_of("path"))
    lowered = F.lower("path")
    xml = files.where(lowered.endswith(".xml"))
    lists = paths.select("path").where(lowered.endswith(".txt")).where(is_list("path"))
    images = files.where(~lowered.endswith(".xml") & ~lowered.endswith(".txt"))
    parsed = map_in_arrow(_with_content(spark, xml, is_local), _parse, ANNOTATIONS_DDL).withColumn(_KEY, key_of("path"))
    named = _with_content(spark, lists, is_local)
    named = map_in_arrow(named, functools.partial(_read_lists, root=root), f"{_KEY} STRING, list STRING")
    by_key = named.groupBy(_KEY).agg(F.collect_set("list").alias(_LISTS))
    joined = (
        images.groupBy(_KEY)
        .agg(F.sort_array(F.collect_list("path")).alias(_IMAGES))
        .join(parsed, _KEY, "full_outer")
        .join(by_key.hint("merge"), _KEY, "full_outer")
    )
    return merged_by_path(map_in_arrow(joined, _match_voc, ANNOTATIONS_DDL))


def _with_content(spark: SparkSession, paths: DataFrame, is_local: bool) -> DataFrame:
    """Adds the bytes of small files: local ones read by the workers, others through Spark."""
    from pyspark.sql import functions as F

    if is_local:
        return map_in_arrow(paths.select("path"), _read_local, f"path STRING, {CONTENT} BINARY")
    files = paths.select("path", F.lit(1).alias(schema.SOURCE_LENGTH))
    return read_contents(spark, files, _FILES_AT_ONCE).select("path", CONTENT)


def _read_local(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Reads files; one that cannot be read, or that is beyond any annotation, has no content."""
    for batch in batches:
        for start in range(0, len(batch), _FILES_AT_ONCE):
            paths = batch.column(0).slice(start, _FILES_AT_ONCE)
            contents = [_content_of(path) for path in paths.to_pylist()]
            yield pa.RecordBatch.from_arrays([paths, pa.array(contents, pa.binary())], ["path", CONTENT])


def _content_of(path: str) -> bytes | None:
    try:
        with open(local_path(path), "rb") as stream:  # noqa: PTH123
            return stream.read(voc.MAX_XML_BYTES + 1)
    except OSError:
        return None


def _parse(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Parses XML files; the records keep the path of their file until they are matched with an image."""
    return annotation_batches(voc.parse_voc(content, path) for path, content in _pairs(batches))


def _pairs(batches: Batches) -> Iterator[tuple[str, bytes]]:
    for batch in batches:
        for path, content in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            yield path, content or b""


def _key_of(path: str, root: str) -> str:
    return voc.image_key(relative_reference(path, root) or path)


def _is_list(path: str, root: str) -> bool:
    return voc.split_list(relative_reference(path, root) or path) is not None


def _read_lists(batches: Batches, root: str) -> Iterator[pa.RecordBatch]:
    """Reads split lists in a task: the key of each image that one names, with the list's own name."""
    for path, content in _pairs(batches):
        found = voc.split_list(relative_reference(path, root) or path)
        if found is not None:
            folder, name = found
            keys = list(voc.parse_split_list(content.decode("utf-8", "replace"), folder))
            columns = [pa.array(keys, pa.string()), pa.array([name] * len(keys), pa.string())]
            yield pa.RecordBatch.from_arrays(columns, [_KEY, "list"])


def _match_voc(batches: Batches) -> Iterator[pa.RecordBatch]:
    return annotation_batches(each for batch in batches for row in batch.to_pylist() for each in _matched_voc(row))


def _matched_voc(row: dict[str, Any]) -> Iterator[Annotation]:
    images, lists = row[_IMAGES] or (), row[_LISTS] or ()
    if row["path"] is None and not images:
        line = Annotation(f"{row[_KEY]}#{','.join(sorted(lists))}")
        yield line.with_problem(record.IMAGE_MISSING, f"{_LIST_NAMES} {' and '.join(sorted(lists))} names {row[_KEY]}")
    elif not images:
        yield annotation_of(row).with_problem(record.IMAGE_MISSING, f"no image for {row[_KEY]}")
    for image in images:
        if row["path"] is None:
            annotation = Annotation(image).with_problem(record.ANNOTATION_MISSING, f"no XML file for {row[_KEY]}")
        elif len(images) > 1:
            annotation = Annotation(image).with_problem(
                record.ANNOTATION_SHARED, f"{row['path']}: {' and '.join(images)}"
            )
        else:
            annotation = dataclasses.replace(annotation_of(row), path=image)
        yield voc.with_split_lists(annotation, lists)


def check_split_lists(source: Source, plan: Plan) -> None:
    """Checks that each split list names an image; costs a job where a line names none."""
    from pyspark.sql import functions as F

    if source.is_frame or source.layout != VOC or not plan.missing_images:
        return
    is_line = F.exists(PROBLEMS, lambda found: found["detail"].startswith(_LIST_NAMES))
    is_line = F.coalesce(is_line, F.lit(False))
    of_line = F.split(F.regexp_extract(schema.PATH, "#([a-z,]+)$", 1), ",")
    # An image of two lists has no split; its problem names both.
    conflicts = F.filter(F.coalesce(PROBLEMS, F.array()), lambda found: found["reason"] == record.SPLIT_CONFLICT)
    of_conflict = F.flatten(F.transform(conflicts, lambda found: F.split(found["detail"], ", ")))
    lists = F.when(is_line, of_line).otherwise(F.array_append(of_conflict, F.col(schema.SPLIT)))
    named = plan.listed_files().select(is_line.alias("is_line"), F.explode(lists).alias("name"), schema.PATH)
    found = named.groupBy("is_line", "name").agg(F.min(schema.PATH)).collect()
    matched = {name for is_line, name, _ in found if not is_line}
    for name, first in sorted((name, first) for is_line, name, first in found if is_line):
        if not voc.splits_of_list(name) & matched:
            raise AnnotationFileError(
                f"{source.name}: no line of the split list {name}.txt names an image; the first is "
                f"{first.rpartition('#')[0]!r}. A line is the name of an image below JPEGImages, with or without its "
                "suffix; correct the list or remove it"
            )
