"""Manifests: a table with one row per image, or per box, as CSV, JSON or Parquet; rows to annotations, pure."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from ...errors import AnnotationFileError, InvalidArgumentError
from . import record
from .boxes import Box, Problem, box_from_values, is_true, problem
from .record import Annotation, clean_name, declared_size, read_json_file, with_split

_FORMAT_OF_SUFFIX = {"csv": "csv", "jsonl": "json", "ndjson": "json", "json": "json", "parquet": "parquet"}

# Names of the columns in other tools. If a manifest has several of them, the first counts; the others must agree.
_ALIASES = {
    "path": ("path", "filename", "file_name", "image", "image_path", "filepath", "uri"),
    # Names before numbers: an image table, and many a CSV file, has the number of a class next to its name.
    "label": ("label_name", "class_name", "class", "category", "label"),
    "boxes": ("boxes", "annotations", "objects"),
    "split": ("split", "subset"),
    "width": ("width", "image_width"),
    "height": ("height", "image_height"),
    "difficult": ("difficult",),
    "xmin": ("xmin", "x_min", "x1"),
    "ymin": ("ymin", "y_min", "y1"),
    "xmax": ("xmax", "x_max", "x2"),
    "ymax": ("ymax", "y_max", "y2"),
}
# Columns of boxes that other tools write in several conventions: a corner or the centre, pixels or fractions.
_SIZES = (("w", "h"), ("width", "height"))
_UNCLEAR_BOXES = (
    *(frozenset((*start, *size)) for start in (("x", "y"), ("cx", "cy"), ("x_center", "y_center")) for size in _SIZES),
    *(frozenset(pair) for pair in (("left", "top"), ("xc", "yc"), ("center_x", "center_y"), ("xtl", "ytl"))),
    *(frozenset(pair) for pair in (("minx", "miny"), ("min_x", "min_y"))),
)
# Names that are parts of boxes wherever they stand, such as `bbox_x1`, `bounding_box` and `Roi.X1`.
_UNCLEAR_NAME = re.compile(
    r"(bbox(es)?|bb|bounding_?box(es)?|box|roi)([._ ](x|y|w|h|width|height|left|top|right|bottom|[xy]?(min|max)[xy]?"
    r"|[xy][12]))?|polygons?|segmentations?|rle"
)
_OTHER_CORNERS = frozenset({"x0", "y0", "x3", "y3"})
_SEPARATORS = (",", ";", "\t")
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+\s*")
_DECIMAL_COMMA = re.compile(r"\s*([+-]?\d+),(\d+)\s*")
_SIDES = ("xmin", "ymin", "xmax", "ymax")
# A quote that is never closed would otherwise make one field of the rest of the file.
_MAX_FIELD = 16 * 1024 * 1024
# Columns of the same meaning whose values must agree. A path is often there as a base name or a URI, too.
_MUST_AGREE = ("label", "split")
_NUMBER = re.compile(r"\d+(\.0+)?")
_MAX_KEY_SETS = 1000


@dataclass(frozen=True)
class ManifestColumns:
    """Which of a manifest's columns holds what."""

    # From our name (`path`, `label`, `boxes`, `split`, `width`, `height`, `difficult`, `xmin` ...) to the manifest's
    # own
    names: Mapping[str, str]
    # Other columns of the same meaning, by our name
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def has_box_columns(self) -> bool:
        """Whether each row is one box, its class in `label` and its corners in four columns."""
        return all(side in self.names for side in _SIDES)

    def value(self, row: Mapping[str, Any], name: str) -> Any:
        """The value that a row has under one of our names; None if the row lacks the column or the value."""
        column = self.names.get(name)
        if column is not None and name in self.others:
            given = [other for other in (column, *self.others[name]) if not _is_blank(row.get(other))]
            # The number of a class may stand next to its name.
            column = next((other for other in given if not _is_number(row[other])), given[0] if given else column)
        value = row.get(column) if column is not None else None
        return None if isinstance(value, float) and math.isnan(value) and name not in _SIDES else value


def manifest_format(location: str) -> str:
    """Tells a manifest's format from its suffix."""
    suffix = location.rstrip("/").rpartition(".")[2].lower()
    if suffix not in _FORMAT_OF_SUFFIX:
        known = ", ".join(f".{name}" for name in _FORMAT_OF_SUFFIX)
        raise InvalidArgumentError(f"{location}: the suffix of a manifest gives its format; use one of {known}")
    return _FORMAT_OF_SUFFIX[suffix]


def find_columns(names: Sequence[str], location: str) -> ManifestColumns:
    """Finds the columns of a manifest, whatever their case."""
    folded = [_folded(name) for name in names]
    columns = match_columns(names)
    require_clear_boxes(names, columns, location)
    twice = next((name for name in folded if folded.count(name) > 1), None)
    if twice is not None:
        raise AnnotationFileError(f"{location} has two columns {twice!r}; remove or rename one of them")
    found = columns.names
    there = ", ".join(repr(name) for name in names[:40]) or "none"
    if "path" not in found:
        raise AnnotationFileError(f"{location} has no column 'path' (its columns: {there}); add one, or rename it")
    if columns.has_box_columns and "label" not in found:
        raise AnnotationFileError(f"{location} has a box in each row and no column 'label' for its class; add one")
    if "label" not in found and "boxes" not in found:
        raise AnnotationFileError(
            f"{location} has neither a column 'label' nor 'boxes' (its columns: {there}); add one, or rename it"
        )
    return columns


def require_clear_boxes(names: Iterable[str], columns: ManifestColumns, location: str) -> None:
    """Refuses columns that may be boxes of other conventions, or parts of boxes, and are not read."""
    folded, given = {_folded(name) for name in names}, [columns.names[side] for side in _SIDES if side in columns.names]
    if given and not columns.has_box_columns:
        missing = [side for side in _SIDES if side not in columns.names]
        raise AnnotationFileError(f"{location} has the columns {', '.join(given)} without {', '.join(missing)}")
    if "boxes" in columns.names:
        return
    corners = sorted(folded & _OTHER_CORNERS)
    if columns.has_box_columns and "x1" in map(_folded, given) and corners:
        raise AnnotationFileError(
            f"{location} has the columns {', '.join(given)} and {', '.join(corners)}, the corners of a shape that is "
            "no box; write its bounds as xmin, ymin, xmax and ymax"
        )
    if columns.has_box_columns:
        return
    unclear = sorted(name for name in folded if _UNCLEAR_NAME.fullmatch(name))
    unclear = unclear or next((sorted(one) for one in _UNCLEAR_BOXES if one <= folded), [])
    if unclear:
        raise AnnotationFileError(
            f"{location} has the columns {', '.join(unclear)}, which are boxes in one of several conventions; write "
            "xmin, ymin, xmax and ymax in pixels, or a column 'boxes' of objects with label and bbox, as COCO has it; "
            "leave them out if the images are to be stored without boxes"
        )


def match_columns(names: Iterable[str]) -> ManifestColumns:
    """Finds the columns that there are, without any rule about those that must be."""
    by_name = {_folded(name): name for name in names}
    found, others = {}, {}
    for ours, aliases in _ALIASES.items():
        present = [by_name[alias] for alias in aliases if alias in by_name]
        if present:
            found[ours] = present[0]
        if len(present) > 1 and ours in (*_MUST_AGREE, "boxes"):
            others[ours] = tuple(present[1:])
    return ManifestColumns(found, others)


def check_agreement(values: Mapping[str, Any], where: str) -> None:
    """Checks that columns of the same meaning do not disagree, apart from numbers of classes."""
    given = {name: str(value).strip() for name, value in values.items() if not _is_blank(value)}
    words = {name: text for name, text in given.items() if not _is_number(text)}
    first = next(iter(words), "")
    for name, other in words.items():
        if other != words[first]:
            raise AnnotationFileError(
                f"{where}: the columns {first!r} and {name!r} mean the same and disagree: {words[first][:80]!r} and "
                f"{other[:80]!r}; remove or rename one of them"
            )


def _is_number(value: Any) -> bool:
    return _NUMBER.fullmatch(str(value).strip()) is not None


def _is_blank(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def annotation_of_row(
    row: Mapping[str, Any], columns: ManifestColumns, path_of: Callable[[str], str], where: str
) -> Annotation:
    """Reads one row."""
    for ours, others in columns.others.items():
        check_agreement({name: row.get(name) for name in (columns.names[ours], *others)}, where)
    try:
        path = path_of(columns.value(row, "path"))
    except InvalidArgumentError as error:
        return Annotation(where).with_problem(record.PATH_UNUSABLE, error)
    boxes, problems = _boxes(row, columns, where)
    label = columns.value(row, "label")
    name = None
    if not columns.has_box_columns and not _is_blank(label):
        try:
            name = clean_name(label)
            unusable: object = None if name is not None else f"the label {str(label)[:80]!r} is not the name of a class"
        except InvalidArgumentError as error:
            unusable = error
        if unusable is not None:
            problems.append(problem(record.ANNOTATION_UNREADABLE, unusable))
    size = declared_size(columns.value(row, "width"), columns.value(row, "height"))
    annotation = Annotation(path, label_name=name, boxes=boxes, size=size, problems=tuple(problems))
    split = columns.value(row, "split")
    return with_split(annotation, None if split is None else str(split))


def read_csv(stream: BinaryIO, location: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a CSV file with a header line, quoted as in RFC 4180, in UTF-8, or UTF-16 with its mark."""
    csv.field_size_limit(_MAX_FIELD)
    lines = io.TextIOWrapper(stream, encoding=_encoding_of(stream), newline="")
    try:
        first = next((line for line in lines if line.strip()), "")  # spreadsheets leave blank lines at the top
        separator = _separator_of(first)
        reader = csv.reader(itertools.chain([first], lines), delimiter=separator, strict=True)
        header = next(reader, None)
        if not header:
            raise AnnotationFileError(f"{location} has no line; its first one names the columns, such as path,label")
        columns = find_columns(header, location)
        numbers = {header.index(columns.names[one]) for one in (*_SIDES, "width", "height") if one in columns.names}
        for number, values in enumerate(reader, start=1):
            if any(values[len(header) :]):  # blank ones are what a spreadsheet leaves at the end of a line
                raise AnnotationFileError(
                    f"{location}#row={number} has {len(values)} fields and the header {len(header)}: "
                    f"{','.join(values)[:200]!r}; quote fields that hold a comma, or name the missing columns"
                )
            for n in numbers if separator == "," else ():
                if _THOUSANDS.fullmatch(values[n] if n < len(values) else ""):
                    raise AnnotationFileError(
                        f"{location}#row={number}: {header[n]} is {values[n]!r}, which has thousands or a decimal "
                        "comma; write it without the comma, or with a point"
                    )
            # Where a comma separates, one within a field is quoted.
            values = [_with_point(value) if n in numbers else value for n, value in enumerate(values)]
            if values:
                # A row that is too short lacks its last values, not its columns.
                yield dict(itertools.zip_longest(header, values[: len(header)]))
    except UnicodeDecodeError as error:
        raise AnnotationFileError(f"{location} is not UTF-8 ({error}); save it as UTF-8") from error
    except UnicodeError as error:
        raise AnnotationFileError(f"{location} is not text ({error}); save it as UTF-8") from error
    except csv.Error as error:
        raise AnnotationFileError(f"{location}: {error}; a quote may lack its end") from error
    finally:
        lines.detach()


def _encoding_of(stream: BinaryIO) -> str:
    mark = stream.read(2)
    stream.seek(0)
    return "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _separator_of(header: str) -> str:
    """Finds what separates the fields: the first separator by which there is a column of paths; a comma otherwise."""
    for separator in _SEPARATORS:
        names = next(csv.reader([header], delimiter=separator), [])
        if "path" in match_columns(names).names:
            return separator
    return _SEPARATORS[0]


def _with_point(number: str) -> str:
    found = _DECIMAL_COMMA.fullmatch(number)
    return f"{found[1]}.{found[2]}" if found else number


def read_json(stream: BinaryIO, location: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a JSON file: the elements of an array, or one row per line."""
    if _encoding_of(stream) == "utf-16":
        try:
            stream = io.BytesIO(stream.read().decode("utf-16").encode("utf-8"))
        except UnicodeError as error:
            raise AnnotationFileError(f"{location} is not text ({error}); save it as UTF-8") from error
    start = _first_bytes(stream)
    if start == b"[":
        yield from map(_as_row, read_json_file(stream, location))
        return
    for number, line in enumerate(stream):
        # Bytes that are not UTF-8 fail in the line they are in.
        text = line.decode("utf-8", "replace").removeprefix("\ufeff").strip()
        if text == "{" and number == 0:
            raise AnnotationFileError(
                f"{location} holds a JSON object on several lines; a manifest is an array of objects, or JSON lines"
            )
        if text:
            yield parse_json_line(text)


def _first_bytes(stream: BinaryIO) -> bytes:
    """Returns the first byte after blanks and a byte order mark, and rewinds the stream."""
    start = stream.read(1)
    while start and start in b" \t\r\n\xef\xbb\xbf":
        start = stream.read(1)
    stream.seek(0)
    return start


def parse_json_line(line: str) -> dict[str, Any]:
    """Reads one line of JSON; one that is not an object becomes a row without a path, which is accounted for."""
    try:
        return _as_row(json.loads(line))
    except (ValueError, RecursionError):
        return {}


def _as_row(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _boxes(
    row: Mapping[str, Any], columns: ManifestColumns, where: str
) -> tuple[tuple[Box, ...] | None, list[Problem]]:
    entries = columns.value(row, "boxes")
    if columns.has_box_columns:
        if not _is_blank(entries):
            raise AnnotationFileError(
                f"{where} has corners and {columns.names['boxes']!r}, two ways to write boxes; keep one"
            )
        box = {name: columns.value(row, name) for name in ("label", "difficult", *_SIDES)}
        # How such manifests list an image without any object; a class without corners is a box that was lost.
        if all(_is_blank(box[name]) for name in ("label", *_SIDES)):
            return (), []
        entries = [box]
    try:
        entries = _as_list(entries)
    except InvalidArgumentError as error:
        return None, [problem(record.ANNOTATION_UNREADABLE, error)]
    if entries is None:
        return None, []
    if len(entries) > record.MAX_BOXES_PER_IMAGE:
        return (), [problem(record.TOO_MANY_BOXES, f"{len(entries)} boxes")]
    boxes: list[Box] = []
    problems: list[Problem] = []
    for entry in entries:
        try:
            boxes.append(_box(entry, where))
        except InvalidArgumentError as error:
            problems.append(problem(record.BOX_MALFORMED, error))
    return tuple(boxes), problems


def _as_list(value: Any) -> list[Any] | None:
    """Takes boxes as a list, as JSON text of one, or as nothing: null, or a blank cell of a CSV file."""
    if isinstance(value, str):
        if not value.strip():
            return None
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"boxes are not JSON: {error}") from error
    if value is None:
        return None
    if not isinstance(value, list):
        raise InvalidArgumentError(f"boxes are a {type(value).__name__}, not a list of objects")
    return value


def _box(entry: Any, where: str) -> Box:
    if not isinstance(entry, Mapping):
        raise InvalidArgumentError("a box is not an object with a label and four numbers")
    labels = {name: entry[name] for name in _ALIASES["label"] if not _is_blank(entry.get(name))}
    check_agreement(labels, f"{where}, a box")
    label = next((one for one in labels.values() if not _is_number(one)), next(iter(labels.values()), None))
    name = clean_name(label)
    if name is None:
        raise InvalidArgumentError("a box has no label")
    difficult = is_true(entry.get("difficult"))
    if entry.get("bbox") is not None:
        corners = entry["bbox"]
        return box_from_values(
            name, corners if isinstance(corners, list) else [], difficult=difficult, convention="corner_and_size"
        )
    return box_from_values(name, [entry.get(side) for side in _SIDES], difficult=difficult)


def read_rows(rows: Iterable[Mapping[str, Any]], location: str, path_of: Callable[[str], str]) -> Iterator[Annotation]:
    """Reads rows in a manifest's own order; JSON lines may each leave out other keys."""
    known: dict[tuple[str, ...], ManifestColumns] = {}
    checked = False
    boxed: ManifestColumns | None = None  # those of a row with corners; one that another row leaves out is lost
    largest, has_fractions = 0.0, False
    for number, row in enumerate(rows, start=1):
        names = tuple(row)
        if names and not checked:
            known[names], checked = find_columns(names, location), True
        columns = known.get(names)
        if columns is None:
            columns = match_columns(names)
            if boxed is not None and "boxes" not in columns.names and {"label", *_SIDES} & columns.names.keys():
                columns = replace(columns, names={**{side: boxed.names[side] for side in _SIDES}, **columns.names})
            require_clear_boxes(names, columns, f"{location}#row={number}")
        if columns.has_box_columns:
            boxed = boxed or columns
        if len(known) < _MAX_KEY_SETS:
            known[names] = columns
        annotation = annotation_of_row(row, columns, path_of, f"{location}#row={number}")
        for box in annotation.boxes or ():
            largest = max(largest, *box.corners)
            has_fractions = has_fractions or any(0 < side < 1 for side in box.corners)
        yield annotation
    if has_fractions and largest <= 1:
        raise AnnotationFileError(
            f"{location}: no corner of its boxes is above {largest:g}; fractions of the image's sides are not pixels: "
            "multiply them by its width and height"
        )


def _folded(name: str) -> str:
    return name.strip().lstrip("\ufeff").lower()
