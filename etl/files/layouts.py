"""Layouts of sources, and the class that a layout of class folders gives a file; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def class_of_folder(folder: str) -> str:
    """Takes the class name from a folder's name: `001.ak47` is `ak47`, anything else is itself."""
    return class_name(_NUMBERED.sub("", folder)) or folder


def number_of_folder(folder: str) -> int | None:
    """Takes the number from a folder's name, 1 from `001.ak47`; None when it has none that fits 32 bits."""
    found = _NUMBERED.match(folder)
    number = int(found.group()[:-1]) if found else None
    return None if number is None or number > _LARGEST_NUMBER else number


def class_of_parts(parts: Sequence[str], layout: str) -> str | None:
    """Derives the class of a file from its path's components below the source folder.

    `class_folders`: the first folder, whatever folders lie between it and the file. `nested_class_folders`: all
    folders, joined by `/`. None when the file lies in no folder.
    """
    folders = [class_of_folder(part) for part in parts[:-1]]
    if not folders:
        return None
    return folders[0] if layout == CLASS_FOLDERS else "/".join(folders)


def check_class_folders(folders: Sequence[str]) -> None:
    """Checks that no two class folders name the same class."""
    seen: dict[str, str] = {}
    for folder in sorted(folders):
        name = class_of_folder(folder)
        if name in seen:
            raise InvalidArgumentError(
                f"folders {seen[name]!r} and {folder!r} both name the class {name!r}; rename or merge one of them"
            )
        seen[name] = folder
