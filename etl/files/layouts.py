"""Layouts of sources, and the class that a layout of class folders gives a file; pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from ...errors import InvalidArgumentError, UnknownLayoutError
from ..model.class_names import class_name

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
    """Returns whether folders count their classes as Caltech-256 does.

    Each has a number, all as many digits, no number is there twice, and a letter is in what follows.
    """
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
    """Derives the class of a file from its path's components below the source folder.

    `class_folders`: the first folder, whatever folders lie between it and the file. `nested_class_folders`: all
    folders, joined by `/`. None when the file lies in no folder.
    """
    folders = [class_of_folder(part, keep_name=keep_names) for part in parts[:-1]]
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
