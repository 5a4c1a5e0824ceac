"""Pascal VOC (VOC2012 development kit): one XML file per image, and lists of image names that give the splits; pure.

What the XML says in `<folder>` and `<filename>` is often stale, and is not read: names decide.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from ...errors import InvalidArgumentError
from . import record
from .boxes import Box, Problem, box_from_values, is_true, problem
from .record import Annotation, clean_name, declared_size, with_split

_LIST_FOLDERS = "ImageSets/Main/"
# `train` and `val` divide what `trainval` lists as a whole.
_JOINT_LIST = "trainval"
_SPLIT_LISTS = ("train", "val", "test", _JOINT_LIST)

# Parsed, XML takes up to 30 times its size.
MAX_XML_BYTES = 8 * 1024 * 1024
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_DECLARED_ENCODING = re.compile(rb"""\s*<\?xml[^>]{0,100}?encoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
# Encodings that expat cannot read, and labelling tools still write.
_MULTI_BYTE_ENCODINGS = (b"gbk", b"gb2312", b"gb18030", b"big5", b"shift_jis", b"euc-jp", b"euc-kr")
_FLAGGED, _NUMBERED = re.compile(r"(.*\S)\s+(-1|0|1)"), re.compile(r".*\s\d+(\.\w+)?")
# Suffixes that a line may have: a name may end in a rarer one, as `scan.rgb` of `scan.rgb.png` does.
_LISTED_SUFFIXES = frozenset({"jpg", "jpeg", "png", "bmp", "gif", "tif", "tiff", "webp"})


class _UnusableXmlError(Exception):
    """Raised when a file is not an annotation."""


class _Builder(ElementTree.TreeBuilder):
    """Refuses document types: without one, no text can grow and nothing outside is read."""

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise _UnusableXmlError("it has a document type, which no VOC annotation needs and entity attacks do")


def _root_of(data: bytes) -> Element:
    """Parses a whole document."""
    declared, encoding = _DECLARED_ENCODING.match(data), ""
    try:
        if declared is not None and declared[1].lower() in _MULTI_BYTE_ENCODINGS:
            data, encoding = data.decode(declared[1].decode("ascii")).encode("utf-8"), "utf-8"
        parser = ElementTree.XMLParser(target=_Builder(), encoding=encoding or None)  # noqa: S314  no entities
        root: Element = ElementTree.fromstring(data, parser)  # noqa: S314
    except (ElementTree.ParseError, UnicodeError) as error:
        raise _UnusableXmlError(str(error)) from error
    except (ValueError, LookupError) as error:  # an encoding that the declaration names and Python does not know
        raise _UnusableXmlError(f"{type(error).__name__}: {error}") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]  # without its namespace
    if root.tag != "annotation":
        raise _UnusableXmlError(f"the document is a <{root.tag[:60]}>, not an <annotation>")
    return root


def parse_voc(data: bytes, path: str) -> Annotation:
    """Reads one annotation file, whatever namespace its elements are in; what is unreadable becomes a problem."""
    if len(data) > MAX_XML_BYTES:
        return Annotation(path).with_problem(record.ANNOTATION_UNREADABLE, f"{len(data)} bytes of XML")
    try:
        root = _root_of(data)
    except _UnusableXmlError as error:
        return Annotation(path).with_problem(record.ANNOTATION_UNREADABLE, error)
    boxes: list[Box] = []
    problems: list[Problem] = []
    for found in root.findall("object"):
        try:
            boxes.append(_box(found))
        except InvalidArgumentError as error:
            problems.append(problem(record.BOX_MALFORMED, error))
    for tag in _elsewhere(root):
        problems.append(problem(record.BOX_MALFORMED, f"an object in another place than <annotation>: <{tag}>"))
    size = declared_size(_text(root, "size/width"), _text(root, "size/height"))
    return Annotation(path, boxes=tuple(boxes), size=size, problems=tuple(problems))


def _elsewhere(root: Element) -> Iterator[str]:
    """Yields the elements that are objects, or boxes outside of objects, and not where VOC has them."""
    for element in root:
        if element.tag != "object":
            yield from (one.tag for one in element.iter() if one.tag.lower() in ("object", "bndbox"))


def _box(found: Element) -> Box:
    if len(found.findall("bndbox")) > 1:
        raise InvalidArgumentError("an object has two bndbox")
    name = clean_name(_text(found, "name"))
    if name is None:
        raise InvalidArgumentError("an object has no name of a class")
    box = found.find("bndbox")
    corners = [None if box is None else _text(box, side) for side in _CORNERS]
    missing = [side for side, corner in zip(_CORNERS, corners, strict=True) if corner is None]
    if missing:
        raise InvalidArgumentError(f"an object of class {name[:80]} has no {', '.join(missing)} in its bndbox")
    difficult = is_true(_text(found, "difficult"))
    return box_from_values(name, corners, difficult=difficult, convention="inclusive")


def _text(element: Element, path: str) -> str | None:
    """The text of the first element at a path; None where there is none."""
    text = element.findtext(path)
    return None if text is None else text.strip()


def image_key(relative_path: str) -> str:
    """Derives what an image, its XML and its line in a list share: `a/000005` for `a/JPEGImages/000005.jpg`."""
    *folders, name = relative_path.split("/")
    stem = name.rpartition(".")[0] or name
    return "/".join([*(folder for folder in folders if folder not in ("JPEGImages", "Annotations")), stem])


def split_list(relative_path: str) -> tuple[str, str] | None:
    """Returns the folder that a split list's names are below, and the list's name; None for lists of one class."""
    found = re.fullmatch(rf"(.*/)?{_LIST_FOLDERS}({'|'.join(_SPLIT_LISTS)})\.txt", relative_path)
    return None if found is None else (found[1] or "", found[2])


def parse_split_list(text: str, folder: str) -> Iterator[str]:
    """Yields the keys of the images that a list names, with or without their suffix; names may have blanks."""
    # -1, 0 or 1 behind a name is the second word of lists of one class; but 0 and 1 are a part of the name where the
    # list counts names, as `photo 1` and `photo 2`, or has the name without it.
    lines = dict.fromkeys(line.strip() for line in text.lstrip("\ufeff").splitlines() if line.strip())
    flags = {line: found for line in lines if (found := _FLAGGED.fullmatch(line))}
    starts = Counter(start for line in lines for start in {line, line.rsplit(None, 1)[0]})
    has_absent = any(found[2] == "-1" for found in flags.values())
    is_counted = any(_NUMBERED.fullmatch(line) for line in lines.keys() - flags.keys())
    for line in lines:
        found = flags.get(line)
        is_flag = found and (has_absent or (not is_counted and starts[found[1]] == 1))
        name = found[1] if found and is_flag else line
        stem, _, suffix = name.rpartition(".")
        yield folder + (stem if stem and suffix.lower() in _LISTED_SUFFIXES else name)


def with_split_lists(annotation: Annotation, lists: Collection[str]) -> Annotation:
    """Assigns an image the split of the lists that name it; being in two of `train`, `val` and `test` is a conflict."""
    # `trainval` counts only for images in neither `train` nor `val`, as in VOC2007's published sets: it means `train`.
    joint_counts = not {"train", "val"} & set(lists)
    names = sorted({"train" if name == _JOINT_LIST else name for name in lists if name != _JOINT_LIST or joint_counts})
    if len(names) > 1:
        return annotation.with_problem(record.SPLIT_CONFLICT, ", ".join(names))
    return with_split(annotation, names[0]) if names else annotation


def splits_of_list(name: str) -> set[str | None]:
    """Returns the splits that images of a list may have."""
    lists = [[name], ["val"]] if name == _JOINT_LIST else [[name]]
    return {with_split_lists(Annotation(""), each).split for each in lists}
