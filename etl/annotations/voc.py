"""Pascal VOC: one XML file per image, and lists of image names that give the splits; pure.

Source: the VOC2012 development kit. An image and its annotation share their name without suffix; what the XML itself
says in `<folder>` and `<filename>` is often stale, and is not believed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from xml.parsers import expat

from ...errors import InvalidArgumentError
from .boxes import Box, Problem, box_from_values, problem
from .record import (
    ANNOTATION_UNREADABLE,
    BOX_MALFORMED,
    MAX_BOXES_PER_IMAGE,
    SPLIT_CONFLICT,
    TOO_MANY_BOXES,
    Annotation,
    clean_name,
    declared_size,
    limit_boxes,
    with_split,
)

IMAGE_FOLDER = "JPEGImages"
ANNOTATION_FOLDER = "Annotations"
_LIST_FOLDERS = "ImageSets/Main/"
# `train` and `val` divide what `trainval` lists as a whole.
_JOINT_LIST = "trainval"
_SPLIT_LISTS = ("train", "val", "test", _JOINT_LIST)

MAX_XML_BYTES = 64 * 1024 * 1024
_MAX_DEPTH = 32
_MAX_TEXT = 4096
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_DECLARED_ENCODING = re.compile(rb"""\s*<\?xml[^>]{0,100}?encoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
_MULTI_BYTE_ENCODINGS = (b"gbk", b"gb2312", b"gb18030", b"big5", b"shift_jis", b"euc-jp", b"euc-kr")
_TRUE = ("1", "true", "yes")


class _UnusableXmlError(Exception):
    """Raised inside the parser to stop it."""

    def __init__(self, message: str, reason: str = ANNOTATION_UNREADABLE) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class _Object:
    """One `<object>` while it is read."""

    name: str | None = None
    difficult: bool = False
    corners: dict[str, str] = field(default_factory=dict)
    boxes: int = 0


class _Reader:
    """Follows the few elements that matter and passes over the others, `<part>` with boxes of its own among them."""

    def __init__(self) -> None:
        self.objects: list[_Object] = []
        self.size: dict[str, str] = {}
        self._path: list[str] = []
        self._text: list[str] = []
        self._text_length = 0

    def parse(self, data: bytes) -> None:
        """Reads a whole document.

        Raises:
            _UnusableXmlError: If it is not well-formed, or is built to exhaust the reader.
        """
        encoding = _multi_byte_encoding(data)
        if encoding is not None:
            data = _transcoded(data, encoding)
        parser = expat.ParserCreate("utf-8" if encoding else None)
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        # Entities are declared in a document type only: without one, no text can grow and nothing outside is read.
        parser.StartDoctypeDeclHandler = _refuse_doctype
        try:
            parser.Parse(data, True)
        except expat.ExpatError as error:
            raise _UnusableXmlError(str(error)) from error
        except (ValueError, LookupError) as error:  # an encoding that the declaration names and Python does not know
            raise _UnusableXmlError(f"{type(error).__name__}: {error}") from error

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._path and name != "annotation":
            raise _UnusableXmlError(f"the document is a <{name[:60]}>, not an <annotation>")
        if len(self._path) >= _MAX_DEPTH:
            raise _UnusableXmlError(f"elements lie more than {_MAX_DEPTH} deep")
        self._path.append(name)
        self._text, self._text_length = [], 0
        if self._path == ["annotation", "object"]:
            if len(self.objects) > MAX_BOXES_PER_IMAGE:
                raise _UnusableXmlError(f"more than {MAX_BOXES_PER_IMAGE} objects", TOO_MANY_BOXES)
            self.objects.append(_Object())
        elif self._path == ["annotation", "object", "bndbox"]:
            self.objects[-1].boxes += 1

    def _end(self, name: str) -> None:
        text = "".join(self._text).strip()
        path, self._path = tuple(self._path), self._path[:-1]
        self._text, self._text_length = [], 0
        if path[:2] == ("annotation", "size") and len(path) == 3:
            self.size[name] = text
        elif path[:2] == ("annotation", "object"):
            self._end_in_object(path[2:], text)

    def _end_in_object(self, below: tuple[str, ...], text: str) -> None:
        current = self.objects[-1]
        if below == ("name",):
            current.name = clean_name(text)
        elif below == ("difficult",):
            current.difficult = text.lower() in _TRUE
        elif len(below) == 2 and below[0] == "bndbox" and below[1] in _CORNERS and current.boxes == 1:
            current.corners[below[1]] = text

    def _characters(self, data: str) -> None:
        self._text_length += len(data)
        if self._text_length <= _MAX_TEXT:
            self._text.append(data)


def _multi_byte_encoding(data: bytes) -> str | None:
    """The encoding that a declaration names, if it is one that expat cannot read and labelling tools still write."""
    found = _DECLARED_ENCODING.match(data)
    return found[1].decode("ascii") if found and found[1].lower() in _MULTI_BYTE_ENCODINGS else None


def _transcoded(data: bytes, encoding: str) -> bytes:
    try:
        return data.decode(encoding).encode("utf-8")
    except UnicodeError as error:
        raise _UnusableXmlError(str(error)) from error


def _refuse_doctype(name: str, system: str | None, public: str | None, has_subset: bool) -> None:
    raise _UnusableXmlError("it has a document type, which no VOC annotation needs and entity attacks do")


def parse_voc(data: bytes, path: str) -> Annotation:
    """Reads one annotation file.

    Args:
        data: The XML file.
        path: Given to the record as it is.

    Returns:
        The annotation, its boxes converted from 1-based inclusive pixels. A file that cannot be read gives a record
        with the problem `annotation_unreadable`; an object without a class or a whole box gives `box_malformed`.
    """
    if len(data) > MAX_XML_BYTES:
        return Annotation(path).with_problem(ANNOTATION_UNREADABLE, f"{len(data)} bytes of XML")
    reader = _Reader()
    try:
        reader.parse(data)
    except _UnusableXmlError as error:
        return Annotation(path).with_problem(error.reason, error)
    boxes: list[Box] = []
    problems: list[Problem] = []
    for found in reader.objects:
        try:
            boxes.append(_box(found))
        except InvalidArgumentError as error:
            problems.append(problem(BOX_MALFORMED, error))
    size = declared_size(reader.size.get("width"), reader.size.get("height"))
    return limit_boxes(Annotation(path, boxes=tuple(boxes), size=size, problems=tuple(problems)))


def _box(found: _Object) -> Box:
    if found.name is None:
        raise InvalidArgumentError("an object has no name of a class")
    missing = [side for side in _CORNERS if side not in found.corners]
    if missing:
        raise InvalidArgumentError(f"an object of class {found.name[:80]} has no {', '.join(missing)} in its bndbox")
    corners = [found.corners[side] for side in _CORNERS]
    return box_from_values(found.name, corners, difficult=found.difficult, convention="inclusive")


def image_key(relative_path: str) -> str:
    """Derives what an image, its annotation and its line in a list have in common.

    The path below the source folder without suffix and without the folders `JPEGImages` and `Annotations`:
    `VOC2007/Annotations/000005.xml` and `VOC2007/JPEGImages/000005.jpg` are `VOC2007/000005`, and so are the two files
    `VOC2007/000005.xml` and `VOC2007/000005.jpg` that a labelling tool leaves side by side.
    """
    *folders, name = relative_path.split("/")
    stem = name.rpartition(".")[0] or name
    return "/".join([*(folder for folder in folders if folder not in (IMAGE_FOLDER, ANNOTATION_FOLDER)), stem])


def split_list(relative_path: str) -> tuple[str, str] | None:
    """Returns what a file lists: (folder that its names are below, `train`, `val`, `test` or `trainval`), or None.

    Lists of one class, such as `ImageSets/Main/cat_train.txt`, say which images hold a cat, not which split they are
    in.
    """
    found = re.fullmatch(rf"(.*/)?{_LIST_FOLDERS}({'|'.join(_SPLIT_LISTS)})\.txt", relative_path)
    return None if found is None else (found[1] or "", found[2])


def parse_split_list(text: str, folder: str) -> Iterator[str]:
    """Yields the keys of the images that a list names: the first word of each line, whatever follows it."""
    for line in text.lstrip("\ufeff").splitlines():
        words = line.split()
        if words:
            yield folder + words[0]


def with_split_lists(annotation: Annotation, lists: Collection[str]) -> Annotation:
    """Assigns an image the split of the lists that name it; being in two of `train`, `val` and `test` is a conflict.

    `trainval` counts only for images in neither `train` nor `val`, as in VOC2007's published sets: it means `train`.
    """
    names = sorted({"train" if name == _JOINT_LIST else name for name in _without_joint(lists)})
    if len(names) > 1:
        return annotation.with_problem(SPLIT_CONFLICT, ", ".join(names))
    return with_split(annotation, names[0]) if names else annotation


def _without_joint(lists: Iterable[str]) -> set[str]:
    names = set(lists)
    return names - {_JOINT_LIST} if names & {"train", "val"} else names


def with_path(annotation: Annotation, path: str) -> Annotation:
    """Moves an annotation to the image that it was found to belong to."""
    return replace(annotation, path=path)
