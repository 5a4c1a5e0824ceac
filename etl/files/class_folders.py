"""The files of a folder as rows, with the class that a layout gives each; knows no Spark."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import EmptySourceError, InvalidArgumentError, SourceNotFoundError
from .layouts import (
    CLASS_FOLDERS,
    FOLDER_LAYOUTS,
    NESTED_CLASS_FOLDERS,
    are_numbered,
    check_class_folders,
    class_of_parts,
    number_of_folder,
)
from .walk import CLASS_NAME_UNUSABLE, IMAGE_SUFFIXES, NO_CLASS_FOLDER, folder_id, is_hidden, local_uri, visit

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
        return [name.decode("utf-8", "replace") for name in self.folders]

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
            "a folder of its own, as in cat/1.jpg"
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
    return TopLevel(
        tuple(name for name, is_folder in found if is_folder), tuple(name for name, is_folder in found if not is_folder)
    )


def list_below(root: bytes, names: Iterable[bytes], wanted: Wanted) -> Iterator[ListedFile]:
    """Lists everything below some of a folder's entries.

    Raises InvalidArgumentError where two folders of images are one class.
    """
    classes: dict[tuple[bytes, ...], tuple[str | None, int | None, str | None]] = {}
    folder_of: dict[str, tuple[bytes, ...]] = {}
    above_all = folder_id(root)
    for name in names:
        path = root.rstrip(b"/") + b"/" + name
        for entry in visit(path, (name,), functools.partial(os.stat, path), above_all, wanted.suffixes):
            above = entry.parts[:-1]
            found = classes.get(above)
            if found is None:
                parts = [part.decode("utf-8", "replace") for part in (*above, b"")]
                found = classes[above] = wanted.class_of(parts), wanted.rank_of(parts), wanted.why_no_class(parts)
            label, rank, reason = found
            if wanted.layout == NESTED_CLASS_FOLDERS and label is not None and entry.ignored is None:
                other = folder_of.setdefault(label, above)
                if other != above:
                    wanted.check_folders(
                        [part.decode("utf-8", "replace") for part in parts] for parts in (other, above)
                    )
            uri, modified = local_uri(entry.path), entry.modified_ms * 1000
            yield ListedFile(uri, entry.length, modified, label, rank, entry.ignored or reason)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir() and not entry.name.startswith(b".")
    except OSError:
        return False
