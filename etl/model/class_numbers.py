"""Which number each class has, settled from what the log, the table's property and its rows say; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .labels import LABELS_PROPERTY

_MOST_NAMED = 5


class WrongNumber(NamedTuple):
    """Rows and boxes that carry a number which is not their class's.

    Attributes:
        name: The class.
        number: What they carry.
        rows: How many rows and boxes.
        why: Whose number it is, or which number the class has.
    """

    name: str
    number: int
    rows: int
    why: str


@dataclass(frozen=True)
class ClassNumbers:
    """The outcome.

    Attributes:
        labels: Number by class name, each number once, ordered by number.
        wrong: Rows that contradict it; a class that has no number yet may be among them.
        contradictions: Descriptions of errors in the table's property.
    """

    labels: dict[str, int]
    wrong: tuple[WrongNumber, ...] = ()
    contradictions: tuple[str, ...] = ()

    def findings(self) -> tuple[str, ...]:
        """Describes what is wrong, one finding at a time; empty for a table without damage."""
        rows = (
            f"{found.rows} {'row or box' if found.rows == 1 else 'rows and boxes'} of {found.name!r} with the number "
            f"{found.number}, {found.why}"
            for found in self.wrong
        )
        return (*self.contradictions, *rows)

    def summary(self) -> str:
        """Says the first findings in one line."""
        found = self.findings()
        more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return "; ".join(found[:_MOST_NAMED]) + more


def settle(noted: Mapping[str, int], stated: Mapping[str, int], rows: Mapping[tuple[str, int], int]) -> ClassNumbers:
    """Finds each class's number, and what contradicts it.

    What lakelens has noted in the log comes first: a model may have been trained on it. Then come the property, and the
    rows of classes that neither knows, those with most rows first. An entry of the property whose number is another
    class's is dropped: rows that carry it are found by themselves, and without rows nobody has used it.

    Args:
        noted: Numbers as the log remembers them.
        stated: Numbers that the table's property gives.
        rows: How many rows and boxes there are of each pair of class and number.
    """
    labels = dict(noted)
    names = {number: name for name, number in labels.items()}
    contradictions = []
    for name, number in stated.items():
        if name not in labels and number not in names:
            labels[name], names[number] = number, name
        elif name in labels and labels[name] != number:
            contradictions.append(
                f"the table property {LABELS_PROPERTY} gives {name!r} the number {number}, {_why(name, labels)}"
            )
    wrong = []
    for (name, number), count in sorted(rows.items(), key=lambda item: (-item[1], item[0])):
        if name not in labels and number not in names:
            labels[name], names[number] = number, name
        elif labels.get(name) != number:
            why = f"which is that of {names[number]!r}" if number in names else _why(name, labels)
            wrong.append(WrongNumber(name, number, count, why))
    ordered = dict(sorted(labels.items(), key=lambda item: item[1]))
    return ClassNumbers(ordered, tuple(sorted(wrong)), tuple(contradictions))


def _why(name: str, labels: Mapping[str, int]) -> str:
    return f"while its number is {labels[name]}"


def merge_older(versions: list[Mapping[str, int]]) -> dict[str, int]:
    """Joins the numbers of versions, the oldest first: what was given first stays."""
    labels: dict[str, int] = {}
    for version in versions:
        taken = set(labels.values())
        labels |= {name: number for name, number in version.items() if name not in labels and number not in taken}
    return labels
