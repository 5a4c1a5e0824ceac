"""The files of local or mounted folders: walked, and given the class that a layout reads from their path; no Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import operator
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from ..errors import EmptySourceError, InvalidArgumentError, SourceNotFoundError, UnknownLayoutError
from .model.classes import class_name

# What the files that Pillow and pillow-heif decode are called. Files with other names are skipped without being read.
_SUFFIXES = """
apng avif avifs blp bmp bw cur dcx dds dib fit fits flc fli ftc ftu gbr gif heic heif hif icb icns ico im imt j2c j2k
jfif jp2 jpc jpe jpeg jpf jpg jpx mpo msp pbm pcd pcx pfm pgm png pnm ppm psd pxr qoi ras rgb rgba sgi spi spider sun
tga tif tiff vda vst webp xbm xpm
"""
IMAGE_SUFFIXES = frozenset(_SUFFIXES.split())
_PLAIN_PATH = re.compile(rb"[A-Za-z0-9_.~/-]*")
_HIDDEN_NAMES = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin"})

HIDDEN = "hidden"
# Spark reads no file of such a name; on local and mounted folders, which it does not read, they are images like others.
HIDDEN_BY_SPARK = "name_starts_with_underscore"
NOT_AN_IMAGE_NAME = "not_an_image_name"
NO_CLASS_FOLDER = "no_class_folder"
CLASS_NAME_UNUSABLE = "class_name_unusable"
BROKEN_LINK = "broken_link"
PATH_TOO_LONG = "path_too_long"
UNREADABLE_FILE = "unreadable_file"
LINK_LOOP = "link_loop"
UNREADABLE_FOLDER = "unreadable_folder"
SPECIAL_FILE = "special_file"
# An image outside the folders that the annotations of its source mean.
OTHER_FOLDER = "other_folder"
# Files below such a path were not read, so they do not count as removed.
NOT_LOOKED_INTO = (BROKEN_LINK, PATH_TOO_LONG, UNREADABLE_FILE, UNREADABLE_FOLDER)
# The reason by error of the file system. A circular link has no target.
_REASONS = {
    errno.ENOENT: BROKEN_LINK,
    errno.ENOTDIR: BROKEN_LINK,
    errno.ELOOP: BROKEN_LINK,
    errno.ENAMETOOLONG: PATH_TOO_LONG,
}


class Entry(NamedTuple):
    """One file, or one thing that was skipped."""

    path: bytes  # Absolute path as bytes
    parts: tuple[bytes, ...]  # The path's components below the folder that was walked
    length: int = 0  # Size in bytes
    modified_ms: int = 0  # Time of the last change in milliseconds since 1970
    ignored: str | None = None  # Why it is skipped, or None


def is_hidden(name: str) -> bool:
    """Returns whether a file or folder is the operating system's rather than the user's."""
    return name.startswith(".") or name.lower() in _HIDDEN_NAMES


def has_suffix(name: str, suffixes: frozenset[str]) -> bool:
    """Returns whether a file's name ends with a dot and one of `suffixes`, which are in lower case."""
    return "." in name and name.rpartition(".")[2].lower() in suffixes


def local_uri(path: bytes) -> str:
    """Writes a local path as a `file://` URI: spaces, % and bytes beyond ASCII quoted, so that any name survives."""
    # Most paths need no quoting, and quote() takes long to find that out.
    return "file://" + (path.decode("ascii") if _PLAIN_PATH.fullmatch(path) else quote(path))


def local_path(uri: str) -> bytes:
    """Reads back what `local_uri` wrote; also takes the `file:/path` that Hadoop writes."""
    return unquote_to_bytes(re.sub(r"^file:(//)?(?=/)", "", uri))


def _device_and_inode(folder: bytes) -> tuple[int, int]:
    status = os.stat(folder)  # noqa: PTH116  bytes: pathlib takes none
    return status.st_dev, status.st_ino


def visit(
    path: bytes,
    parts: tuple[bytes, ...],
    look: Callable[[], os.stat_result],
    above: frozenset[tuple[int, int]],
    suffixes: frozenset[str],
) -> Iterator[Entry]:
    """Yields one file, or every file below one folder, and what was skipped; follows links, except in a loop."""
    name = os.fsdecode(parts[-1])
    if is_hidden(name):
        yield Entry(path, parts, ignored=HIDDEN)
        return
    try:
        status = look()
    except OSError as error:
        yield Entry(path, parts, ignored=_REASONS.get(error.errno or 0, UNREADABLE_FILE))
        return
    if stat.S_ISDIR(status.st_mode):
        yield from _walk(path, parts, above, suffixes)
    elif not stat.S_ISREG(status.st_mode):
        yield Entry(path, parts, ignored=SPECIAL_FILE)
    elif not has_suffix(name, suffixes):
        yield Entry(path, parts, ignored=NOT_AN_IMAGE_NAME)
    else:
        yield Entry(path, parts, status.st_size, status.st_mtime_ns // 1_000_000)


def _walk(
    folder: bytes, parts: tuple[bytes, ...], above: frozenset[tuple[int, int]], suffixes: frozenset[str]
) -> Iterator[Entry]:
    try:
        here = _device_and_inode(folder)
        if here in above:
            yield Entry(folder, parts, ignored=LINK_LOOP)
            return
        with os.scandir(folder) as found:
            entries = sorted(found, key=operator.attrgetter("name"))
    except OSError as error:
        too_long = error.errno == errno.ENAMETOOLONG
        yield Entry(folder, parts, ignored=PATH_TOO_LONG if too_long else UNREADABLE_FOLDER)
        return
    below = above | {here}
    for entry in entries:
        yield from visit(entry.path, (*parts, entry.name), entry.stat, below, suffixes)


CLASS_FOLDERS = "class_folders"
NESTED_CLASS_FOLDERS = "nested_class_folders"
FOLDER_LAYOUTS = (CLASS_FOLDERS, NESTED_CLASS_FOLDERS)
VOC = "voc"
COCO = "coco"
MANIFEST = "manifest"
LAYOUTS = (*FOLDER_LAYOUTS, VOC, COCO, MANIFEST)

# Caltech-256 counts its classes in the folder's name: 001.ak47, 002.american-flag.
_NUMBERED = re.compile(r"^\d{3,}\.(?=.)")
# Numbers travel as Spark's INT; what is beyond it is a time, as in 20240101123456.cat, and counts no classes.
_LARGEST_NUMBER = 2**31 - 1


def check_layout(layout: str) -> None:
    """Checks a layout's name."""
    if layout not in LAYOUTS:
        raise UnknownLayoutError(f"layout = {layout!r} is not one that lakelens reads: {', '.join(LAYOUTS)}")


def are_numbered(folders: Collection[str]) -> bool:
    """Returns whether all folders count their classes as Caltech-256 does: with as many digits, and no number twice."""
    found = [_NUMBERED.match(folder) for folder in folders]
    numbers = [match.group() for match in found if match is not None]
    names = [folder[len(number) :] for folder, number in zip(folders, numbers, strict=False)]
    return (
        0 < len(folders) == len(numbers) == len(set(numbers))
        and len({len(number) for number in numbers}) == 1
        and all(any(character.isalpha() for character in name) for name in names)
    )


def class_of_folder(folder: str, *, keep_name: bool) -> str:
    """Takes the class name from a folder's name: `001.ak47` is `ak47` unless names are kept, others are themselves."""
    return class_name(folder if keep_name else _NUMBERED.sub("", folder)) or folder


def number_of_folder(folder: str) -> int | None:
    """Takes the number from a folder's name, 1 from `001.ak47`; None when it has none that fits 32 bits."""
    found = _NUMBERED.match(folder)
    number = int(found.group()[:-1]) if found else None
    return None if number is None or number > _LARGEST_NUMBER else number


def class_of_parts(parts: Sequence[str], layout: str, *, keep_names: bool) -> str | None:
    """Derives the class of a file from its path's components below the source folder; None if it lies in no folder."""
    folders = [class_of_folder(part, keep_name=keep_names or level > 0) for level, part in enumerate(parts[:-1])]
    if not folders:
        return None
    return folders[0] if layout == CLASS_FOLDERS else "/".join(folders)


def check_class_folders(folders: Iterable[Sequence[str]], layout: str, *, keep_names: bool) -> None:
    """Checks that no two class folders, each as its path's components, name the same class."""
    seen: dict[str | None, tuple[str, ...]] = {}
    of_class = 1 if layout == CLASS_FOLDERS else None
    for parts in sorted({tuple(parts[:of_class]) for parts in folders}):
        name = class_of_parts([*parts, ""], layout, keep_names=keep_names)
        other = seen.setdefault(name, parts)
        if other != parts:
            one, two = (class_of_parts([*each, ""], layout, keep_names=True) for each in (other, parts))
            by_number = ", or keep the names of folders in a new table (--keep-folder-names)" if one != two else ""
            raise InvalidArgumentError(
                f"folders {'/'.join(other)!r} and {'/'.join(parts)!r} both name the class {name!r}; rename or merge "
                f"one of them{by_number}"
            )


NUMBERED_FOLDERS = "numbered folders"


class ListedFile(NamedTuple):
    """One file of a folder, or one thing that is ignored."""

    path: str  # Its `file://` URI
    length: int  # Size in bytes
    modified_us: int  # Time of the last change, microseconds since 1970, in whole milliseconds
    label_name: str | None  # Its class, or None
    label_rank: int | None  # The number of its class folder, such as 1 of `001.ak47`, or None
    ignored: str | None  # Why it is ignored, or None


@dataclass(frozen=True)
class Wanted:
    """What a layout looks for in a folder."""

    layout: str  # Its name
    suffixes: frozenset[str] = IMAGE_SUFFIXES  # What the names of its files end with
    # Whether the number of a class folder stays in its name; None until the folders are seen
    keep_names: bool | None = None

    @property
    def has_classes(self) -> bool:
        """Whether folders name classes."""
        return self.layout in FOLDER_LAYOUTS

    def decided(self, folders: Iterable[str]) -> Wanted:
        """Returns the same, with the rule for names that the folders of the source show if no table has fixed it."""
        if self.keep_names is not None or not self.has_classes:
            return self
        return dataclasses.replace(self, keep_names=not are_numbered([name for name in folders if not is_hidden(name)]))

    def class_of(self, parts: Sequence[str]) -> str | None:
        """Returns the class of a file by its path's components below the source folder."""
        try:
            return class_of_parts(parts, self.layout, keep_names=bool(self.keep_names)) if self.has_classes else None
        except InvalidArgumentError:
            return None

    def why_no_class(self, parts: Sequence[str]) -> str | None:
        """Returns why a file has no class; None if it has one, or the layout has none."""
        if not self.has_classes or self.class_of(parts) is not None:
            return None
        return NO_CLASS_FOLDER if len(parts) == 1 else CLASS_NAME_UNUSABLE

    def why_ignored(self, parts: Sequence[str]) -> str | None:
        """Returns why a file that Spark lists is ignored; None if it is not."""
        name = parts[-1]
        if any(is_hidden(part) for part in parts):
            return HIDDEN
        if not has_suffix(name, self.suffixes):
            return NOT_AN_IMAGE_NAME
        # Annotation files of this suffix are copied rather than read by Spark, and some tools write just such names.
        if name.startswith("_") and not name.lower().endswith(".json"):
            return HIDDEN_BY_SPARK
        return self.why_no_class(parts)

    def rank_of(self, parts: Sequence[str]) -> int | None:
        """Returns the number of the class folder."""
        return number_of_folder(parts[0]) if len(parts) > 1 and self.has_classes and not self.keep_names else None

    def check_folders(self, folders: Iterable[Sequence[str]]) -> None:
        """Checks that no two folders, each as its path's components below the source folder, are one class."""
        if self.has_classes:
            check_class_folders(folders, self.layout, keep_names=bool(self.keep_names))


@dataclass(frozen=True)
class TopLevel:
    """What lies in a source folder itself."""

    folders: tuple[bytes, ...] = ()  # Names of its folders, sorted
    others: tuple[bytes, ...] = ()  # Names of everything else, sorted
    problem: str | None = None  # `missing`, `file` or `unreadable`, when it is not a folder that can be listed

    @property
    def names(self) -> tuple[bytes, ...]:
        """All names, folders first."""
        return (*self.folders, *self.others)

    @property
    def folder_names(self) -> list[str]:
        """The names of its folders as text."""
        return _texts(self.folders)

    def kind(self, wanted: Wanted) -> str:
        """What it shows in a word: folders, numbered ones, files, both or nothing; hidden names do not count."""
        are_files = any(not is_hidden(os.fsdecode(name)) for name in self.others)
        folders = NUMBERED_FOLDERS if wanted.has_classes and not wanted.keep_names else "folders"
        return " and ".join([folders] * bool(self.folders) + ["files"] * are_files) or "nothing"

    def check(self, root: str, wanted: Wanted) -> None:
        """Checks that the folder is what a layout wants."""
        if self.problem == "missing":
            raise SourceNotFoundError(
                f"{root} does not exist (as the executors see it); give an existing folder or URI"
            )
        if self.problem == "file":
            raise SourceNotFoundError(f"{root} is a file; layout {wanted.layout!r} wants a folder")
        if self.problem == "unreadable":
            raise SourceNotFoundError(f"{root} cannot be listed: permission denied; let the executors' user read it")
        if wanted.layout == CLASS_FOLDERS:
            wanted.check_folders([name] for name in self.folder_names)


def check_class_folder(root: str, top: TopLevel, wanted: Wanted) -> None:
    """Checks that a source folder has a class folder if its layout wants some."""
    if wanted.has_classes and not top.folders:
        raise EmptySourceError(
            f"{root} has no class folder, which layout {wanted.layout!r} wants: put the images of each class into "
            "a separate folder, as in cat/1.jpg"
        )


def list_top(root: bytes) -> TopLevel:
    """Lists a source folder itself, as this machine sees it."""
    try:
        with os.scandir(root) as entries:
            found = sorted((entry.name, _is_folder(entry)) for entry in entries)
    except FileNotFoundError:
        return TopLevel(problem="missing")
    except NotADirectoryError:
        return TopLevel(problem="file")
    except OSError:
        return TopLevel(problem="unreadable")
    folders, others = (tuple(name for name, is_folder in found if is_folder == kind) for kind in (True, False))
    return TopLevel(folders, others)


def list_below(root: bytes, names: Iterable[bytes], wanted: Wanted) -> Iterator[ListedFile]:
    """Lists everything below some of a folder's entries; InvalidArgumentError if two folders are one class."""
    classes: dict[tuple[bytes, ...], tuple[str | None, int | None, str | None]] = {}
    folder_of: dict[str, tuple[bytes, ...]] = {}
    above_all = frozenset[tuple[int, int]]()
    with contextlib.suppress(OSError):
        above_all = frozenset({_device_and_inode(root)})
    for name in names:
        path = root.rstrip(b"/") + b"/" + name
        for entry in visit(path, (name,), functools.partial(os.stat, path), above_all, wanted.suffixes):
            above = entry.parts[:-1]
            found = classes.get(above)
            if found is None:
                parts = _texts((*above, b""))
                found = classes[above] = wanted.class_of(parts), wanted.rank_of(parts), wanted.why_no_class(parts)
            label, rank, reason = found
            if wanted.layout == NESTED_CLASS_FOLDERS and label is not None and entry.ignored is None:
                other = folder_of.setdefault(label, above)
                if other != above:
                    wanted.check_folders(map(_texts, (other, above)))
            uri, modified = local_uri(entry.path), entry.modified_ms * 1000
            yield ListedFile(uri, entry.length, modified, label, rank, entry.ignored or reason)


def _texts(names: Iterable[bytes]) -> list[str]:
    return [name.decode("utf-8", "replace") for name in names]


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir() and not entry.name.startswith(b".")
    except OSError:
        return False
