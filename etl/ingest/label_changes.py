"""Classes that went or came under another name, images in several classes or splits: reported after an ingest; pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...results import ReadableResult

CONTENT = "content"
SPELLING = "spelling"

# A class counts as renamed when at least this part of its images came back under one other name.
_MOVED_SHARE = 0.5
_MOST_NAMED = 10


class Rename(NamedTuple):
    """A class that seems to go by another name now.

    Attributes:
        old: The name that no file of the source has any more.
        new: The name that its images have.
        evidence: `content` (the same images) or `spelling` (the names differ in case, blanks or punctuation only).
        images: How many images are in both; 0 if the spelling is the only evidence.
    """

    old: str
    new: str
    evidence: str
    images: int


class Conflict(NamedTuple):
    """One content that is in several classes, or in several splits: a model is measured on what it was trained on.

    Attributes:
        content_hash: Of the content.
        names: The classes or splits, sorted.
        paths: A file of each, in the same order.
    """

    content_hash: str
    names: tuple[str, ...]
    paths: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(f"{name!r} ({path})" for name, path in zip(self.names, self.paths, strict=True))


@dataclass(frozen=True, repr=False)
class ClassChanges(ReadableResult):
    """What became of the classes of a source, and which of its images are in several classes or splits.

    Attributes:
        vanished: Classes of stored rows that no file of the source has any more; their numbers stay theirs.
        renamed: Those of `vanished` that seem to live on under another name. The old number stays with the old name: a
            model that was trained on it would otherwise be read wrongly.
        conflicts: Contents that came in and are in the table in several classes.
        examples: The first of them.
        split_conflicts: Contents that came in and are in the table in several splits, as a manifest may put them.
        split_examples: The first of them.
    """

    vanished: tuple[str, ...] = ()
    renamed: tuple[Rename, ...] = ()
    conflicts: int = 0
    examples: tuple[Conflict, ...] = ()
    split_conflicts: int = 0
    split_examples: tuple[Conflict, ...] = ()

    def sentences(self) -> Iterator[str]:
        """Describes the findings in sentences."""
        for old, new, evidence, images in self.renamed[:_MOST_NAMED]:
            why = f"{images} of its images are in it" if evidence == CONTENT else "by its spelling"
            yield f"class {old!r} seems to be {new!r} now ({why}); each keeps a number of its own"
        if len(self.renamed) > _MOST_NAMED:
            yield f"besides these, {len(self.renamed) - _MOST_NAMED} of the vanished classes seem to have another name"
        renamed = {rename.old for rename in self.renamed}
        lost = [repr(name) for name in self.vanished if name not in renamed]
        if lost:
            more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
            yield f"no file of the source has these classes any more: {', '.join(lost[:_MOST_NAMED])}{more}"
        if self.vanished:
            yield "rows of vanished classes stay in the table unless an ingest deletes the rows of removed files"
        if self.conflicts:
            where = self.examples[0]
            yield f"images that are in several classes with the same bytes: {self.conflicts}, such as {where}"
        if self.split_conflicts:
            yield (
                f"images that are in several splits with the same bytes: {self.split_conflicts}, such as "
                f"{self.split_examples[0]}; a model would be measured on images that it was trained on"
            )


def find_renames(
    vanished: Mapping[str, int], present: Collection[str], moved: Mapping[tuple[str, str], int]
) -> tuple[Rename, ...]:
    """Finds the names under which vanished classes live on.

    Args:
        vanished: Contents by name of the classes that went.
        present: Names of the classes that the source has.
        moved: By (vanished class, class of the source), how many contents both have.
    """
    # By name and by spelling: thousands of classes that are renamed at a time must not be compared pair by pair.
    here = frozenset(present)
    moved_to: dict[str, dict[str, int]] = {}
    for (old, new), images in moved.items():
        if new in here:
            moved_to.setdefault(old, {})[new] = images
    spelled: dict[str, list[str]] = {}
    for name in sorted(here):
        spelled.setdefault(_spelling(name), []).append(name)
    found = (
        _rename_of(name, contents, moved_to.get(name, {}), spelled.get(_spelling(name), ()))
        for name, contents in vanished.items()
    )
    return tuple(rename for rename in found if rename is not None)


def _rename_of(name: str, contents: int, moved_to: Mapping[str, int], spelled: Collection[str]) -> Rename | None:
    if moved_to:
        new, images = max(moved_to.items(), key=lambda item: (item[1], item[0]))
        if images >= _MOVED_SHARE * contents:
            return Rename(name, new, CONTENT, images)
    alike = next((other for other in spelled if other != name), None)
    return None if alike is None else Rename(name, alike, SPELLING, 0)


def _spelling(name: str) -> str:
    folded = unicodedata.normalize("NFKC", name).casefold()
    letters = "".join(character for character in folded if character.isalnum())
    return letters or name
