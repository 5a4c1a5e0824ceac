"""The annotation of one image: the record that every format is read into, its closed reasons, and its JSON files."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from ...errors import AnnotationFileError, InvalidArgumentError
from ..model import schema
from ..model.classes import class_name
from ..model.splits import check_splits
from . import boxes as box_rules
from .boxes import Box, Problem, problem

# Its reader needs 3 to 8 times as much memory; COCO's largest file has 0.45 GB.
MAX_JSON_BYTES = 1_000_000_000


def read_json_file(
    stream: BinaryIO, location: str, kept: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> Any:
    """Reads a JSON document in UTF-8; `kept` reduces each of its objects, the inner ones first."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    if size > MAX_JSON_BYTES:
        raise AnnotationFileError(
            f"{location} has more than {MAX_JSON_BYTES:,} bytes of JSON, which would not fit into the memory of "
            "its reader; split it (COCO: one file for each split), or write the annotations as JSON lines or Parquet "
            "(layout 'manifest')"
        )
    try:
        text = stream.read().decode("utf-8-sig")  # the bytes are not kept while it is parsed
        return json.loads(text, object_hook=kept)
    except RecursionError:
        raise AnnotationFileError(f"{location}: its JSON values are nested too deeply") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number of more digits than Python converts
        raise AnnotationFileError(f"{location} is not JSON in UTF-8: {error}") from error


QUARANTINED = "quarantined"
DROPPED = "dropped"
REPAIRED = "repaired"

ANNOTATION_MISSING = "annotation_missing"
ANNOTATION_UNREADABLE = "annotation_unreadable"
ANNOTATION_SHARED = "annotation_shared"
ANNOTATION_REPEATED = "annotation_repeated"
FOUND_BY_NAME = "image_found_by_name"
IMAGE_MISSING = "image_missing"
CONTENT_CONFLICT = "content_conflict"
LABEL_CONFLICT = "label_conflict"
CLASS_UNKNOWN = "class_unknown"
SPLIT_CONFLICT = "split_conflict"
SPLIT_UNFIT = "split_unfit"
PATH_UNUSABLE = "path_unusable"
TOO_MANY_BOXES = "too_many_boxes"
BOX_MALFORMED = "box_malformed"
BOX_CLASS_UNKNOWN = "box_class_unknown"
BOX_CLASS_UNWANTED = "box_class_unwanted"
BOXES_LOST = "boxes_lost"

# An image's boxes travel in one row; the densest public detection sets stay below a tenth of this.
MAX_BOXES_PER_IMAGE = 20_000
_BATCH_BOXES = 50_000


class Reason(NamedTuple):
    """The consequence of a problem in an annotation."""

    effect: str  # `quarantined` (the image is not stored), `dropped` (one box is not) or `repaired` (stored, changed)
    meaning: str  # In words


REASONS: dict[str, Reason] = {
    ANNOTATION_MISSING: Reason(QUARANTINED, "the source annotates its images, but not this one"),
    ANNOTATION_UNREADABLE: Reason(QUARANTINED, "the image's annotation breaks its own format"),
    ANNOTATION_SHARED: Reason(QUARANTINED, "several images have the name that one annotation is for"),
    box_rules.SIZE_MISMATCH: Reason(QUARANTINED, "the annotation was drawn on an image of another size"),
    IMAGE_MISSING: Reason(QUARANTINED, "an annotation names an image that the source does not hold"),
    CONTENT_CONFLICT: Reason(QUARANTINED, "the source gives one path two contents"),
    LABEL_CONFLICT: Reason(QUARANTINED, "the source gives one image two classes"),
    CLASS_UNKNOWN: Reason(QUARANTINED, "the image's class is not among those that are known"),
    SPLIT_CONFLICT: Reason(QUARANTINED, "the source puts one image into two splits"),
    SPLIT_UNFIT: Reason(QUARANTINED, "the split's name cannot be that of a folder"),
    PATH_UNUSABLE: Reason(QUARANTINED, "the annotation gives no path that can be read here"),
    BOXES_LOST: Reason(QUARANTINED, "a box could not be stored, so the image would show an object without its box"),
    TOO_MANY_BOXES: Reason(QUARANTINED, f"the image has more than {MAX_BOXES_PER_IMAGE} boxes"),
    BOX_MALFORMED: Reason(DROPPED, "a box lacks its class or one of four numbers"),
    BOX_CLASS_UNKNOWN: Reason(DROPPED, "a box is of a class that its file does not name"),
    BOX_CLASS_UNWANTED: Reason(DROPPED, "a box is of a class that is not among those that are wanted"),
    box_rules.BOX_NOT_FINITE: Reason(DROPPED, "a box has a coordinate that is not a finite number"),
    box_rules.BOX_NO_AREA: Reason(DROPPED, "a box has no area"),
    box_rules.BOX_OUTSIDE: Reason(DROPPED, "a box has no pixel within the image"),
    box_rules.BOX_CROPPED_AWAY: Reason(DROPPED, "a box lies in what `crop` cuts off"),
    box_rules.BOX_CLIPPED: Reason(REPAIRED, "a box reached over the image's edge and was cut there"),
    box_rules.BOX_INVERTED: Reason(REPAIRED, "a box's corners were in the wrong order and were exchanged"),
    box_rules.SIZE_SCALED: Reason(REPAIRED, "boxes were drawn on the image at another size, and were scaled"),
    box_rules.ORIENTATION_ASSUMED: Reason(REPAIRED, "boxes of a turned image were taken as drawn on the upright one"),
    box_rules.BOX_CROPPED: Reason(REPAIRED, "a part of a box lies in what `crop` cuts off"),
    FOUND_BY_NAME: Reason(REPAIRED, "an image is not where its annotation says, but the only one of its name"),
    ANNOTATION_REPEATED: Reason(REPAIRED, "the same annotation was given twice and kept once"),
}

_SPLIT_ALIASES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class ContentStamp(NamedTuple):
    """The bytes that a source gives along with an annotation."""

    content_hash: str  # Their sha256
    length: int  # Their number
    modified_us: int  # When they were last changed, in microseconds since 1970


@dataclass(frozen=True)
class Annotation:
    """The annotation of one image."""

    path: str  # The image, as the listing of the source names it
    label_name: str | None = None  # Class of the whole image; None when the source gives none
    # Objects in the image, in pixels of the annotated image: empty when it has none, None when it was not annotated
    boxes: tuple[Box, ...] | None = None
    split: str | None = None  # The split that the source puts the image into; None leaves it to the hash of the content
    size: tuple[int, int] | None = None  # (width, height) of the annotated image, if the source has it
    problems: tuple[Problem, ...] = ()  # What was found wrong so far
    # Equal annotations of one path are repeated ones, whatever bytes come with them.
    # The image's bytes; None if they are to be read from `path`
    stamp: ContentStamp | None = field(default=None, compare=False)

    @property
    def quarantine(self) -> Problem | None:
        """The first problem that keeps the image from being stored, or None."""
        return next((found for found in self.problems if REASONS[found.reason].effect == QUARANTINED), None)

    def with_problem(self, reason: str, detail: object) -> Annotation:
        """Adds a problem."""
        return replace(self, problems=(*self.problems, problem(reason, detail)))


def limit_classes(annotation: Annotation, known: Collection[str]) -> Annotation:
    """Drops the boxes of classes that are not known, and marks an image whose own class is not."""
    boxes = annotation.boxes or ()
    kept = tuple(box for box in boxes if box.label_name in known)
    problems = tuple(problem(BOX_CLASS_UNWANTED, box.label_name) for box in boxes if box.label_name not in known)
    if problems:
        # An image whose objects were dropped is not an example of an image without objects.
        annotation = replace(annotation, boxes=kept or None, problems=annotation.problems + problems)
    if annotation.label_name is not None and annotation.label_name not in known:
        return annotation.with_problem(CLASS_UNKNOWN, annotation.label_name)
    return annotation


def lost_boxes(problems: Iterable[Problem]) -> list[Problem]:
    """Returns the boxes that were lost, and not by the user's own choice of classes or of a crop."""
    chosen = (BOX_CLASS_UNWANTED, box_rules.BOX_CROPPED_AWAY)
    return [found for found in problems if REASONS[found.reason].effect == DROPPED and found.reason not in chosen]


def limit_boxes(annotation: Annotation) -> Annotation:
    """Marks an image with more boxes than one row may hold, and drops the boxes."""
    if len(annotation.boxes or ()) <= MAX_BOXES_PER_IMAGE:
        return annotation
    return replace(annotation, boxes=()).with_problem(TOO_MANY_BOXES, f"{len(annotation.boxes or ())} boxes")


def with_split(annotation: Annotation, text: str | None) -> Annotation:
    """Sets the split that a source names; `val`, `valid` and `dev` mean `validation`, an empty name means none."""
    name = (text or "").strip()
    if not name:
        return annotation
    name = _SPLIT_ALIASES.get(name.lower(), name)
    try:
        check_splits({name: 1.0})
    except InvalidArgumentError:
        return annotation.with_problem(SPLIT_UNFIT, name)
    return replace(annotation, split=name)


def merge_annotations(annotations: Iterable[Annotation]) -> Iterator[Annotation]:
    """Joins annotations of one path that follow one another, as a manifest with one row per box has them."""
    for _, group in itertools.groupby(annotations, lambda annotation: annotation.path):
        # A path that is repeated without end must not fill the memory; `groupby` skips the others.
        yield _merge(list(itertools.islice(group, MAX_BOXES_PER_IMAGE + 1)))


def _merge(group: list[Annotation]) -> Annotation:
    first = group[0]
    if len(group) == 1:
        return limit_boxes(first)
    distinct = list(dict.fromkeys(group))
    problems = [found for annotation in distinct for found in annotation.problems]
    if len(distinct) < len(group):
        problems.append(problem(ANNOTATION_REPEATED, f"{len(group) - len(distinct)} times"))
    given = [annotation.boxes for annotation in distinct if annotation.boxes is not None]
    labels = sorted({annotation.label_name for annotation in distinct if annotation.label_name is not None})
    splits = sorted({annotation.split for annotation in distinct if annotation.split is not None})
    sizes = sorted({annotation.size for annotation in distinct if annotation.size is not None})
    stamps = sorted(annotation.stamp for annotation in group if annotation.stamp is not None)
    if len({stamp.content_hash for stamp in stamps}) > 1:
        problems.append(problem(CONTENT_CONFLICT, "its rows differ in their content"))
    if len(labels) > 1:
        problems.append(problem(LABEL_CONFLICT, ", ".join(labels)))
    if len(splits) > 1:
        problems.append(problem(SPLIT_CONFLICT, ", ".join(splits)))
    if len(sizes) > 1:
        problems.append(problem(box_rules.SIZE_MISMATCH, f"annotated at {sizes[0]} and at {sizes[1]}"))
    return limit_boxes(
        Annotation(
            path=first.path,
            label_name=labels[0] if labels else None,
            boxes=tuple(box for boxes in given for box in boxes) if given else None,
            split=splits[0] if splits else None,
            size=sizes[0] if sizes else None,
            problems=tuple(problems),
            stamp=stamps[-1] if stamps else None,
        )
    )


_CORNERS = [(name, pa.float64()) for name in schema.BOX_CORNERS]
_BOX = pa.struct([("label_name", pa.string()), *_CORNERS, ("difficult", pa.bool_())])
# Annotations as rows on their way through Spark.
ANNOTATION_ROWS = pa.schema(
    [
        ("path", pa.string()),
        ("label_name", pa.string()),
        ("boxes", pa.list_(_BOX)),
        ("split", pa.string()),
        ("declared_width", pa.int32()),
        ("declared_height", pa.int32()),
        ("problems", pa.list_(pa.struct([("reason", pa.string()), ("detail", pa.string())]))),
        ("stamp", pa.struct([("content_hash", pa.string()), ("length", pa.int64()), ("modified_us", pa.int64())])),
    ]
)
ANNOTATIONS_DDL = schema.ddl_of(ANNOTATION_ROWS)


def row_of(annotation: Annotation) -> dict[str, Any]:
    """Writes an annotation as a row of `ANNOTATIONS_DDL`; half a surrogate pair, which Arrow refuses, as its escape."""
    width, height = annotation.size or (None, None)
    return {
        "path": encodable(annotation.path),
        "label_name": annotation.label_name,
        "boxes": None if annotation.boxes is None else [vars(box) for box in annotation.boxes],
        "split": annotation.split,
        "declared_width": width,
        "declared_height": height,
        "problems": [{"reason": found.reason, "detail": encodable(found.detail)} for found in annotation.problems],
        "stamp": None if annotation.stamp is None else annotation.stamp._asdict(),
    }


def annotation_of(row: Mapping[str, Any]) -> Annotation:
    """Reads back what `row_of` wrote; columns that are absent or null, as after a join, are empty."""
    width, height = row.get("declared_width"), row.get("declared_height")
    return Annotation(
        path=row["path"],
        label_name=row.get("label_name"),
        boxes=None if row.get("boxes") is None else tuple(Box(**box) for box in row["boxes"]),
        split=row.get("split"),
        size=None if width is None or height is None else (width, height),
        problems=tuple(Problem(**found) for found in row.get("problems") or ()),
        stamp=ContentStamp(**row["stamp"]) if row.get("stamp") else None,
    )


def annotation_batches(annotations: Iterable[Annotation]) -> Iterator[pa.RecordBatch]:
    """Packs annotations into Arrow batches that are bounded by images and boxes together."""
    rows: list[dict[str, Any]] = []
    size = 0
    for annotation in annotations:
        rows.append(row_of(annotation))
        size += 1 + len(annotation.boxes or ()) + len(annotation.problems)
        if size >= _BATCH_BOXES:
            yield pa.RecordBatch.from_pylist(rows, schema=ANNOTATION_ROWS)
            rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=ANNOTATION_ROWS)


def encodable(text: str) -> str:
    """Writes half a surrogate pair, as JSON and names of files that are not UTF-8 may hold it, as its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def declared_size(width: Any, height: Any) -> tuple[int, int] | None:
    """Reads the size that an annotation gives; tools write 0 or nothing where they did not know it."""
    try:
        size = (int(float(width)), int(float(height)))
    except (TypeError, ValueError, OverflowError):
        return None
    return size if min(size) > 0 and max(size) < 2**31 else None


def clean_name(value: Any) -> str | None:
    """Reads the name of a class, a text or a number; None when it is missing. Raises as `class_name`."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    is_whole_float = isinstance(value, float) and value.is_integer()
    return class_name(str(int(value)) if is_whole_float else str(value))
