"""Class numbers that another writer gives in a table property, and the order in which classes are listed; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...errors import NotAnImageTableError

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
