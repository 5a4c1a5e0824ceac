"""Names of classes as every layout reads them, their order, and the numbers that another writer gives them; pure."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping

from ...errors import InvalidArgumentError, NotAnImageTableError

# Texts of a hostile source are cut where they would be stored for every image.
MAX_NAME_LENGTH = 500
# Joiners, which Persian words and composed emoji need, and what counts as a blank.
_ALLOWED = "\u200c\u200d\t\n\r"
# Control and format characters, and halves of surrogate pairs.
_REFUSED = ("Cc", "Cf", "Cs")


def class_name(text: str) -> str | None:
    """Reads the name of a class: composed (NFC), runs of blanks one space, none at the ends; None if empty."""
    composed = unicodedata.normalize("NFC", text)
    name = " ".join(composed.split())
    if any(unicodedata.category(character) in _REFUSED and character not in _ALLOWED for character in composed):
        escaped = composed[:80].encode("unicode_escape").decode("ascii")
        raise InvalidArgumentError(f"the class name '{escaped}' has a character that cannot be seen; remove it")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidArgumentError(
            f"the class name {name[:80]!r}... has {len(name)} characters; at most {MAX_NAME_LENGTH} are stored"
        )
    return name or None


def spelled(name: str) -> str:
    """Spells a class as every source does; a name that no source can have stays as it is."""
    try:
        return class_name(name) or name
    except InvalidArgumentError:
        return name


def names_now(labels: Iterable[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Returns a table's name of each class that a source names otherwise: renamed ones, and spellings of old tables."""
    names = {**aliases, **{name: name for name in labels}}
    return {spelled(name): now for name, now in names.items() if spelled(name) not in names} | dict(aliases)


LABELS_PROPERTY = "lakelens.labels"
NO_CLASS = "(no class)"


def labels_of(configuration: Mapping[str, str]) -> dict[str, int]:
    """Reads the class numbers from a table's properties, ordered by number; empty when the table has none."""
    text = configuration.get(LABELS_PROPERTY)
    if text is None:
        return {}
    try:
        numbers = json.loads(text)
        labels = {str(name): int(number) for name, number in sorted(numbers.items(), key=lambda item: int(item[1]))}
    except (ValueError, TypeError, AttributeError) as error:
        raise NotAnImageTableError(
            f"table property {LABELS_PROPERTY} = {text[:200]!r} is not a JSON object of class names and numbers "
            f"({error}); set it to one, or unset it"
        ) from error
    if len(set(labels.values())) != len(labels):
        raise NotAnImageTableError(
            f"table property {LABELS_PROPERTY} gives two classes the same number: {text[:200]!r}; correct or unset it"
        )
    return labels


def class_order(name: str) -> tuple[bool, int, str]:
    """The key by which new classes are sorted: whole numbers by value, then the others by name."""
    is_number = name.isascii() and name.isdecimal()
    return not is_number, int(name) if is_number else 0, name


def in_order(counts: Mapping[str, int], labels: Mapping[str, int]) -> dict[str, int]:
    """Orders rows by class: classes by their numbers, 0 for a class without rows; then others by name; `(no class)`."""
    others = sorted(name for name, rows in counts.items() if name not in labels and name != NO_CLASS and rows)
    without = [NO_CLASS] if counts.get(NO_CLASS) else []
    numbered = sorted(labels, key=lambda name: labels[name])
    return {name: counts.get(name, 0) for name in (*numbered, *others, *without)}
