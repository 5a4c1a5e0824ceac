"""COCO instances: one JSON file with images, annotations, categories and masks, which become boxes; pure."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, NamedTuple

from ...errors import AnnotationFileError, InvalidArgumentError
from . import record
from .boxes import Box, Problem, box_from_values, is_true, problem
from .record import Annotation, clean_name, declared_size, merge_annotations, read_json_file, with_split

_FIRST, _BITS, _SIGN, _MORE = 48, 5, 0x10, 0x20

Corners = tuple[float, float, float, float]


def mask_bounds(segmentation: Any) -> Corners:
    """Returns a `segmentation`'s bounds as in `boxes`; InvalidArgumentError if it is not a mask, or has no pixel."""
    if isinstance(segmentation, list):
        return _bounds_of_polygons(segmentation)
    if isinstance(segmentation, Mapping):
        return _bounds_of_runs(segmentation)
    raise InvalidArgumentError("an annotation has neither a bbox nor a segmentation")


def _bounds_of_polygons(polygons: Sequence[Any]) -> Corners:
    # Some tools leave out the list around a single polygon.
    given = [polygons] if polygons and not isinstance(polygons[0], list) else polygons
    if not given or not all(_is_polygon(polygon) for polygon in given):
        raise InvalidArgumentError("a polygon is not a list of pairs of numbers")
    xs = [float(x) for polygon in given for x in polygon[::2]]
    ys = [float(y) for polygon in given for y in polygon[1::2]]
    return min(xs), min(ys), max(xs), max(ys)


def _is_polygon(points: Any) -> bool:
    if not isinstance(points, list) or len(points) < 6 or len(points) % 2:
        return False
    return all(isinstance(n, (int, float)) and not isinstance(n, bool) and math.isfinite(n) for n in points)


def _bounds_of_runs(mask: Mapping[str, Any]) -> Corners:
    size, counts = mask.get("size"), mask.get("counts")
    if not isinstance(size, list) or len(size) != 2 or not all(_is_count(side) for side in size):
        raise InvalidArgumentError("a run-length mask has no size [height, width]")
    if isinstance(counts, str):
        counts = list(_decompressed(counts))
    if not isinstance(counts, list) or not all(_is_count(run) for run in counts):
        raise InvalidArgumentError("a run-length mask has no counts")
    height, width = size
    if sum(counts) != height * width:
        raise InvalidArgumentError(f"a run-length mask has {sum(counts)} pixels, its size says {height} x {width}")
    ends = list(itertools.accumulate(counts))
    runs = [(end - run, end) for run, end in zip(counts[1::2], ends[1::2], strict=True) if run]
    if not runs:
        raise InvalidArgumentError("a run-length mask has no pixel")
    top, bottom = height, 0
    for start, end in runs:
        spans = start // height != (end - 1) // height  # a run that continues in the next column has both edges
        top = 0 if spans else min(top, start % height)
        bottom = height if spans else max(bottom, (end - 1) % height + 1)
    return runs[0][0] // height, top, (runs[-1][1] - 1) // height + 1, bottom


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _decompressed(text: str) -> Iterator[int]:
    """Yields the runs of a compressed mask."""
    runs: list[int] = []
    value = shift = 0
    for character in text:
        digit = ord(character) - _FIRST
        if not 0 <= digit < 2 * _MORE:
            raise InvalidArgumentError(f"a compressed mask has the character {character!r}")
        value |= (digit & (_MORE - 1)) << shift
        shift += _BITS
        if digit & _MORE:
            continue
        if digit & _SIGN:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        yield runs[-1]
        value = shift = 0
    if shift:
        raise InvalidArgumentError("a compressed mask ends within a number")


_ARRAYS = ("images", "annotations", "categories")
_KEYS = frozenset(
    (*_ARRAYS, "id", "file_name", "width", "height", "name", "image_id", "category_id", "bbox", "iscrowd")
)
_OF_MASKS = ("counts", "size")
_WHOLE_NUMBER = re.compile(r"(0|-?[1-9]\d{0,18})(\.0+)?")

_Id = int | str
# Keys of an annotation that `_kept` adds: the bounds of its mask, or why there are none. No COCO file has such keys.
_BOUNDS, _REASON = " bounds", " reason"


class CocoFile(NamedTuple):
    """Where a COCO file lies and what it annotates."""

    path: str  # Path of the JSON file below the source folder
    # Folders below the source folder that may hold the images, best first; "" is the source itself
    image_folders: tuple[str, ...]
    split: str | None  # The split that the file's or folder's name says, or None


@dataclass
class _Image:
    """An entry of `images`."""

    name: str  # Its `file_name`
    image_id: _Id | None = None  # Its id; None where no annotation can name it
    size: tuple[int, int] | None = None  # (width, height), if the entry gives it
    problem: Problem | None = None  # What is wrong with the entry


@dataclass(frozen=True)
class CocoInstances:
    """One COCO file in memory; `annotations` gives its records."""

    location: str  # The file, for messages
    images: Sequence[_Image]  # The entries of `images`
    # The entries of `annotations` by the id of their image; None for those without one
    objects: Mapping[_Id | None, Sequence[Any]]
    class_names: Mapping[_Id, str | None]  # The names of the categories by id
    is_annotated: bool = True  # Whether the file has the key `annotations`; one of a test set has none
    repeated: Mapping[_Id | None, int] = field(default_factory=dict)  # How often an annotation came again, by image

    def annotations(self, path_of: Callable[[str], str], split: str | None = None) -> Iterator[Annotation]:
        """Yields one record per image, ordered by path; then one with `IMAGE_MISSING` per id that no image has."""
        records = [self._record(number, image, path_of) for number, image in enumerate(self.images)]
        records.sort(key=lambda found: found.path)
        yield from merge_annotations(with_split(found, split) for found in records)
        known = {image.image_id for image in self.images}
        for image_id, entries in self.objects.items():
            if image_id is None:
                detail = f"{len(entries)} annotations without an image_id"
                yield Annotation(f"{self.location}#no_image_id").with_problem(record.IMAGE_MISSING, detail)
            elif image_id not in known:
                detail = f"{len(entries)} annotations name image id {image_id!r}, which no image has"
                yield Annotation(f"{self.location}#image_id={image_id}").with_problem(record.IMAGE_MISSING, detail)

    def _record(self, number: int, image: _Image, path_of: Callable[[str], str]) -> Annotation:
        problems: list[Problem] = []
        try:
            path = path_of(image.name)
        except InvalidArgumentError as error:
            path = f"{self.location}#image={number}"
            problems.append(problem(record.PATH_UNUSABLE, error))
        if image.problem is not None:
            problems.append(image.problem)
        if image.image_id in self.repeated:
            problems.append(problem(record.ANNOTATION_REPEATED, f"{self.repeated[image.image_id]} times"))
        entries = () if image.image_id is None else self.objects.get(image.image_id, ())
        if len(entries) > record.MAX_BOXES_PER_IMAGE:
            problems.append(problem(record.TOO_MANY_BOXES, f"{len(entries)} annotations"))
            entries = ()
        found = [self._box(entry) for entry in entries]
        boxes = tuple(box for box in found if isinstance(box, Box))
        problems += [box for box in found if not isinstance(box, Box)]
        # Annotations without an image_id may be of any image that has none.
        is_annotated = self.is_annotated and bool(entries or None not in self.objects)
        return Annotation(path, boxes=boxes if is_annotated else None, size=image.size, problems=tuple(problems))

    def _box(self, entry: Mapping[str, Any]) -> Box | Problem:
        corners, bounds = entry.get("bbox"), entry.get(_BOUNDS)
        try:
            if bounds is not None:
                box = box_from_values("", bounds)
            else:
                box = box_from_values("", corners if isinstance(corners, list) else [], convention="corner_and_size")
        except InvalidArgumentError:
            return problem(record.BOX_MALFORMED, entry.get(_REASON) or "an annotation has no bbox of four numbers")
        category_id = _id_of(entry, "category_id")
        name = None if category_id is None else self.class_names.get(category_id)
        if name is None:
            return problem(record.BOX_CLASS_UNKNOWN, "an annotation's category_id is that of no named category")
        return replace(box, label_name=name, difficult=is_true(entry.get("iscrowd")))


def read_coco(stream: BinaryIO, location: str) -> CocoInstances:
    """Reads a COCO instances file."""
    content = read_json_file(stream, location, _kept)
    arrays = [content.get(key, []) for key in _ARRAYS] if isinstance(content, dict) else []
    if not arrays or "images" not in content or not all(isinstance(array, list) for array in arrays):
        raise AnnotationFileError(
            f"{location} is not a COCO instances file: layout 'coco' reads a JSON object with the arrays images, "
            "annotations and categories"
        )
    images, annotations, categories = arrays
    for key, entries in (("images", images), ("categories", categories)):
        _require_ids_by_value(entries, f"{location}: {key}")
    objects, repeated = _by_image(annotations, location)
    names, found = _class_names(categories, location), _images_of(images)
    known, named = {image.image_id for image in found} - {None}, objects.keys() - {None}
    if known and named and not known & named:
        raise AnnotationFileError(
            f"{location}: no annotation names an image of the file: images have ids such as {next(iter(known))!r}, and "
            f"annotations image_ids such as {next(iter(named))!r}; write the same ids in both"
        )
    return CocoInstances(location, found, objects, names, "annotations" in content, repeated)


def _kept(entry: dict[str, Any]) -> dict[str, Any]:
    """Keeps of an object of the file what is read; a mask only as its bounds, and where there is no `bbox`."""
    # A run-length mask; an image or an annotation may also have a key `counts`.
    if "counts" in entry and "size" in entry and not entry.keys() & _KEYS:
        return {key: entry[key] for key in _OF_MASKS if key in entry}
    kept = {key: value for key, value in entry.items() if key in _KEYS}
    if "segmentation" in entry and not entry.get("bbox"):
        try:
            kept[_BOUNDS] = mask_bounds(entry["segmentation"])
        except InvalidArgumentError as error:
            kept[_REASON] = str(error)
    return kept


def _require_ids_by_value(entries: Iterable[Any], where: str) -> None:
    """Refuses 7 and "7" as two ids of one array: what names one of them could mean the other."""
    written: dict[_Id, Any] = {}
    for entry in entries:
        value = _id_of(entry, "id")
        if value is None:
            continue
        known = written.setdefault(value, entry["id"])
        if isinstance(known, str) != isinstance(entry["id"], str):
            raise AnnotationFileError(
                f"{where} has the ids {known!r} and {entry['id']!r}, which are equal by value; write one of them in "
                "another way, or give both entries one id"
            )


def _by_image(annotations: Iterable[Any], location: str) -> tuple[dict[_Id | None, list[Any]], dict[_Id | None, int]]:
    """Gathers the annotations by image, of equal ones with one id the first; and how many were left out."""
    objects: dict[_Id | None, list[Any]] = defaultdict(list)
    repeated: Counter[_Id | None] = Counter()
    known: dict[_Id, Any] = {}
    for entry in annotations:
        value = _id_of(entry, "id")
        if value is None or known.setdefault(value, entry) is entry:
            objects[_id_of(entry, "image_id")].append(entry)
        elif entry == known[value]:
            repeated[_id_of(entry, "image_id")] += 1
        else:
            raise AnnotationFileError(
                f"{location}: annotations has the id {value!r} twice, with other values; give each annotation an id of "
                "its own"
            )
    return objects, repeated


def _class_names(categories: Iterable[Any], location: str) -> dict[_Id, str | None]:
    names: dict[_Id, str | None] = {}
    for entry in categories:
        value = _id_of(entry, "id")
        if value is None:
            continue
        try:
            name = clean_name(entry.get("name"))
        except InvalidArgumentError as error:
            raise AnnotationFileError(f"{location}: categories, id {value!r}: {error}") from error
        if names.setdefault(value, name) != name:
            raise AnnotationFileError(
                f"{location}: categories gives the id {value!r} two names, {names[value]!r} and {name!r}; correct one "
                "of the entries"
            )
    return names


def _images_of(entries: Iterable[Any]) -> list[_Image]:
    """Reads the entries of `images`; every one that differs from the others becomes an image."""
    images: list[_Image] = []
    by_id: dict[_Id, _Image] = {}
    for entry in entries:
        image_id = _id_of(entry, "id")
        name = entry.get("file_name") if isinstance(entry, dict) else None
        if image_id is None or not isinstance(name, str):
            unreadable = problem(record.ANNOTATION_UNREADABLE, "an image without an id or without a file_name")
            images.append(_Image(name if isinstance(name, str) else "", problem=unreadable))
            continue
        known = by_id.get(image_id)
        if known is None:
            by_id[image_id] = _Image(name, image_id, declared_size(entry.get("width"), entry.get("height")))
            images.append(by_id[image_id])
        elif known.name != name:
            text = f"image id {image_id} is that of {known.name!r} and {name!r}"
            known.problem = problem(record.ANNOTATION_UNREADABLE, text)
            images.append(_Image(name, problem=known.problem))
    return images


def find_coco_files(paths: Collection[str]) -> list[CocoFile]:
    """Finds the COCO files of a source by their usual names: COCO's own, and `_annotations.coco.json` in a folder."""
    found: list[CocoFile] = []
    for path in sorted(paths):
        folder, _, name = path.rpartition("/")
        instances = re.fullmatch(r"instances_(.+)\.json", name)
        if instances and folder.rpartition("/")[2] == "annotations":
            above = folder.rpartition("/")[0]
            part = instances[1]
            below = (part, f"images/{part}", "images", "")
            found.append(CocoFile(path, tuple(_join(above, place) for place in below), _split_in(part)))
        elif name == "_annotations.coco.json":
            found.append(CocoFile(path, (folder,), _split_in(folder.rpartition("/")[2])))
    return found


def named_coco_file(location: str, path: str | None) -> CocoFile:
    """Finds what a COCO file that the user has named annotates; without a usual name, the source or its own folder."""
    below = f"annotations/{location.rpartition('/')[2]}" if path is None else path
    folder = "" if path is None else path.rpartition("/")[0]
    usual = find_coco_files([below])
    folders = (*(usual[0].image_folders if usual else ()), "", folder)
    return CocoFile(below, tuple(dict.fromkeys(folders)), usual[0].split if usual else None)


def _split_in(name: str) -> str | None:
    """Reads the split from a name such as `train2017`, `val` or `valid`."""
    found = re.fullmatch(r"(train|val|valid|validation|dev|test)[-_]?\d*", name.lower())
    return found[1] if found else None


def _join(folder: str, below: str) -> str:
    return "/".join(part for part in (folder, below) if part)


def _id_of(entry: Any, key: str) -> int | str | None:
    """Reads an id by its value: 7, 7.0 and "7" are one id, "007" is another."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and (whole := _WHOLE_NUMBER.fullmatch(value.strip())):
        return int(whole[1])
    is_id = isinstance(value, (int, str)) and not isinstance(value, bool) and value != ""
    return value if is_id else None
