"""Pascal VOC folders: XML files parsed by all workers, matched with images and split lists."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ...errors import AnnotationFileError
from ...spark.port import forget, keep
from ...spark.python_tasks import map_in_arrow
from ..annotations import voc
from ..annotations.record import (
    ANNOTATION_MISSING,
    ANNOTATION_SHARED,
    ANNOTATIONS_DDL,
    IMAGE_MISSING,
    SPLIT_CONFLICT,
    Annotation,
    annotation_batches,
    annotation_of,
)
from ..annotations.references import relative_reference
from ..files import IMAGE_SUFFIXES, OTHER_FOLDER, VOC, Wanted, local_path
from ..model import schema
from .annotation_frames import merged_by_path
from .contents import read_contents
from .folders import FolderListing, list_folder
from .listing import IGNORED, PROBLEMS, Listing
from .named_images import annotated_listing
from .source import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ..changes.plan import Plan
    from .annotation_frames import Batches

_KEY = "image_key"
_LISTS = "split_lists"
_CONTENT = "content"
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
        listing = _list_annotated(spark, folder, keep(folder.files))
        on_error.pop_all()
    return listing


def _list_annotated(spark: SparkSession, folder: FolderListing, files: DataFrame) -> Listing:
    from pyspark.sql import functions as F

    ignored = files.where(F.col(IGNORED).isNotNull())
    found = files.where(F.col(IGNORED).isNull())
    is_image = ~F.lower(schema.PATH).rlike(r"\.(xml|txt)$")
    if found.where(is_image & F.col(schema.PATH).contains(_VOC_IMAGES)).limit(1).count():
        masks = found.where(is_image & ~F.col(schema.PATH).contains(_VOC_IMAGES))
        ignored = ignored.unionByName(masks.withColumn(IGNORED, F.lit(OTHER_FOLDER)))
        found = found.where(~is_image | F.col(schema.PATH).contains(_VOC_IMAGES))
    folder = dataclasses.replace(folder, files=found)
    annotations = voc_annotations(spark, found.select(schema.PATH), folder.root, is_local=folder.read_contents is None)
    return dataclasses.replace(annotated_listing(folder, annotations, ignored), cached=(files,))


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
        return map_in_arrow(paths.select("path"), _read_local, f"path STRING, {_CONTENT} BINARY")
    files = paths.select("path", F.lit(1).alias(schema.SOURCE_LENGTH))
    return read_contents(spark, files, _FILES_AT_ONCE).select("path", _CONTENT)


def _read_local(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Reads files; one that cannot be read, or that is beyond any annotation, has no content."""
    import pyarrow as pa

    for batch in batches:
        for start in range(0, len(batch), _FILES_AT_ONCE):
            paths = batch.column(0).slice(start, _FILES_AT_ONCE)
            contents = [_content_of(path) for path in paths.to_pylist()]
            yield pa.RecordBatch.from_arrays([paths, pa.array(contents, pa.binary())], ["path", _CONTENT])


def _content_of(path: str) -> bytes | None:
    try:
        with open(local_path(path), "rb") as stream:  # noqa: PTH123
            return stream.read(voc.MAX_XML_BYTES + 1)
    except OSError:
        return None


def _parse(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Parses XML files; the records keep the path of their file until they are matched with an image."""
    yield from annotation_batches(
        voc.parse_voc(content or b"", path) for batch in batches for path, content in _pairs(batch)
    )


def _pairs(batch: pa.RecordBatch) -> Iterator[tuple[str, bytes | None]]:
    yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _key_of(path: str, root: str) -> str:
    return voc.image_key(relative_reference(path, root) or path)


def _is_list(path: str, root: str) -> bool:
    return voc.split_list(relative_reference(path, root) or path) is not None


def _read_lists(batches: Batches, root: str) -> Iterator[pa.RecordBatch]:
    """Reads split lists in a task: the key of each image that one names, with the list's own name."""
    import pyarrow as pa

    for batch in batches:
        for path, content in _pairs(batch):
            found = voc.split_list(relative_reference(path, root) or path)
            if found is not None:
                folder, name = found
                keys = list(voc.parse_split_list((content or b"").decode("utf-8", "replace"), folder))
                columns = [pa.array(keys, pa.string()), pa.array([name] * len(keys), pa.string())]
                yield pa.RecordBatch.from_arrays(columns, [_KEY, "list"])


def _match_voc(batches: Batches) -> Iterator[pa.RecordBatch]:
    yield from annotation_batches(each for batch in batches for row in batch.to_pylist() for each in _matched_voc(row))


def _matched_voc(row: dict[str, Any]) -> Iterator[Annotation]:
    images, lists = row[_IMAGES] or (), row[_LISTS] or ()
    if row["path"] is None and not images:
        line = Annotation(f"{row[_KEY]}#{','.join(sorted(lists))}")
        yield line.with_problem(IMAGE_MISSING, f"{_LIST_NAMES} {' and '.join(sorted(lists))} names {row[_KEY]}")
    elif not images:
        yield annotation_of(row).with_problem(IMAGE_MISSING, f"no image for {row[_KEY]}")
    for image in images:
        if row["path"] is None:
            annotation = Annotation(image).with_problem(ANNOTATION_MISSING, f"no XML file for {row[_KEY]}")
        elif len(images) > 1:
            annotation = Annotation(image).with_problem(ANNOTATION_SHARED, f"{row['path']}: {' and '.join(images)}")
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
    conflicts = F.filter(F.coalesce(PROBLEMS, F.array()), lambda found: found["reason"] == SPLIT_CONFLICT)
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
