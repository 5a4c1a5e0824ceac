"""What happened to the classes between two states of a source: numbers only grow, and nothing vanishes unsaid; pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .labels import grow_labels

# A class counts as renamed when at least this part of its images came back under one other name.
_MOVED_SHARE = 0.5


class Rename(NamedTuple):
    """A class that seems to go by another name now.

    Attributes:
        old: The name that has no image any more.
        new: The name that its images have.
        evidence: `content` (the same images) or `spelling` (the names differ in case, blanks or punctuation only).
        images: How many images moved; 0 when only the spelling says so.
    """

    old: str
    new: str
    evidence: str
    images: int


@dataclass(frozen=True)
class LabelChanges:
    """The classes after a change.

    Attributes:
        labels: Number by name: all that were there, and the new ones after them.
        added: Names that had no number.
        vanished: Names that had images and have none now; their numbers stay theirs.
        renamed: Those of `vanished` that seem to live on under another name. The old number stays with the old name: a
            model that was trained on it would otherwise be read wrongly.
    """

    labels: Mapping[str, int]
    added: tuple[str, ...]
    vanished: tuple[str, ...]
    renamed: tuple[Rename, ...]


class ClassConflict(NamedTuple):
    """One content that carries several classes.

    Attributes:
        content_hash: Of the content.
        classes: The classes, sorted.
        paths: The files, sorted.
    """

    content_hash: str
    classes: tuple[str, ...]
    paths: tuple[str, ...]


def compare_labels(
    labels: Mapping[str, int],
    counts: Mapping[str, int],
    previous_counts: Mapping[str, int] | None = None,
    moved: Mapping[tuple[str, str], int] | None = None,
) -> LabelChanges:
    """Compares the classes of a table with those that its rows have after a change.

    Args:
        labels: Numbers by name before the change.
        counts: Rows by class name after it.
        previous_counts: Rows by class name before it; None takes every class of `labels` for one that had rows.
        moved: By (old class, new class), how many contents changed from one to the other.
    """
    present = {name for name, rows in counts.items() if rows > 0}
    had_rows = {name for name in labels if previous_counts is None or previous_counts.get(name, 0) > 0}
    added = sorted(present - set(labels))
    vanished = sorted(had_rows - present, key=lambda name: labels[name])
    renamed = [
        found
        for name in vanished
        if (found := _rename_of(name, present, added, previous_counts or {}, moved or {})) is not None
    ]
    return LabelChanges(grow_labels(labels, sorted(present)), tuple(added), tuple(vanished), tuple(renamed))


def find_class_conflicts(rows: Iterable[tuple[str, str, str]]) -> list[ClassConflict]:
    """Finds contents that are in two classes.

    Args:
        rows: (content_hash, label_name, path) of each row, ordered by content hash.
    """
    conflicts: list[ClassConflict] = []
    current, classes, paths = "", set[str](), list[str]()

    def close() -> None:
        if len(classes) > 1:
            conflicts.append(ClassConflict(current, tuple(sorted(classes)), tuple(sorted(paths))))

    for content_hash, name, path in rows:
        if content_hash != current:
            close()
            current, classes, paths = content_hash, set(), []
        classes.add(name)
        paths.append(path)
    close()
    return conflicts


def _rename_of(
    name: str,
    present: set[str],
    added: list[str],
    previous_counts: Mapping[str, int],
    moved: Mapping[tuple[str, str], int],
) -> Rename | None:
    to = {new: images for (old, new), images in moved.items() if old == name and new in present}
    if to:
        new, images = max(to.items(), key=lambda item: (item[1], item[0]))
        if images >= _MOVED_SHARE * previous_counts.get(name, images):
            return Rename(name, new, "content", images)
    alike = [other for other in added if _spelling(other) == _spelling(name)]
    return Rename(name, alike[0], "spelling", 0) if alike else None


def _spelling(name: str) -> str:
    folded = unicodedata.normalize("NFKC", name).casefold()
    letters = "".join(character for character in folded if character.isalnum())
    return letters or name
