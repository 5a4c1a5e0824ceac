"""The ledger of a table as one frozen value, and its changes as pure functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from ..liveness import Process

# Rows by class are kept for at most this many (version, class) pairs: 5,000 versions of a table of ten classes.
MOST_COUNTED = 50_000


class Renaming(NamedTuple):
    """A rename that has begun: the class gets the name once the commit of its rows is recorded."""

    name: str  # The name that the class is to get
    version: int  # The version whose rows are renamed; a later one that lacks the name ends the rename


@dataclass(frozen=True)
class LabelClass:
    """A class. Its number is never given to another class, nor is any name that it has had."""

    number: int  # What models and rows call it
    name: str  # Its name
    former: tuple[str, ...] = ()  # The names that it had, the oldest first
    renaming: Renaming | None = None  # The rename that has begun

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that it has or had."""
        return (*self.former, self.name)

    def named(self, name: str) -> LabelClass:
        """Returns the class under another name; the present one becomes a former one."""
        if name == self.name:
            return self
        former = tuple(other for other in (*self.former, self.name) if other != name)
        return replace(self, name=name, former=former, renaming=None)


class ClassRows(NamedTuple):
    """The rows of one class in one version."""

    number: int | None  # The number of the class; None for rows without a class, and for names without a number
    rows: int  # How many there are


@dataclass(frozen=True)
class Pin:
    """A name for a version, which protects its files."""

    name: str  # The name
    version: int  # The version
    since: datetime  # When it was set


@dataclass(frozen=True)
class Use:
    """A run that reads or has read a version, which protects its files."""

    run_id: str  # The run
    version: int  # The version
    since: datetime  # When the run began
    renewed: datetime  # When the run showed last that it is at work
    # The process that reads; None once the run has ended well, or as a run that can be resumed
    process: Process | None = None
    tracking_uri: str | None = None  # MLflow store of the run, without a password; None for a run without MLflow


@dataclass(frozen=True)
class Vacuum:
    """A VACUUM at work. No version that it does not keep is pinned or used until it has ended."""

    mark: str  # Tells it apart from others
    keeps: tuple[int, ...]  # The protected versions, whose files stay
    latest: int  # The latest version when it began; its files stay, and those of later ones
    beat: int  # Grows as long as it is at work
    process: Process  # Which process runs it


class WrongNumber(NamedTuple):
    """Rows and boxes that carry a number which is not that of their class."""

    name: str  # The class
    number: int  # What they carry
    rows: int  # How many rows and boxes
    why: str  # Whose number it is, or which number the class has

    def __str__(self) -> str:
        what = "row or box" if self.rows == 1 else "rows and boxes"
        return f"{self.rows} {what} of {self.name!r} with the number {self.number}, {self.why}"


@dataclass(frozen=True)
class Ledger:
    """All that lakelens remembers of a table."""

    classes: tuple[LabelClass, ...] = ()  # The classes by their numbers
    # Rows by class name of the versions that lakelens has committed, the oldest first
    versions: Mapping[int, Mapping[str, ClassRows]] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()  # The pins by their names
    uses: tuple[Use, ...] = ()  # The runs that read or have read versions
    vacuum: Vacuum | None = None  # The VACUUM that is at work

    @property
    def labels(self) -> dict[str, int]:
        """Class numbers by name, ordered by number."""
        return {one.name: one.number for one in self.classes}

    @property
    def aliases(self) -> dict[str, str]:
        """The names of classes by their former names."""
        return {old: one.name for one in self.classes for old in one.former}

    @property
    def numbers(self) -> dict[str, int]:
        """Class numbers by every name that a class has or had."""
        return {name: one.number for one in self.classes for name in one.names}

    def labels_at(self, version: int) -> dict[str, int]:
        """Returns class numbers by name, ordered by number, of a version or else of the next recorded one."""
        # A later version has all classes of an earlier one.
        later = min((known for known in self.versions if known >= version), default=None)
        if later is None:
            return self.labels
        found = {name: one.number for name, one in self.versions[later].items() if one.number is not None}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def counts_at(self, version: int) -> dict[str, int] | None:
        """Returns the rows by class of a version; None if it was not recorded."""
        found = self.versions.get(version)
        return None if found is None else {name: one.rows for name, one in found.items()}

    # --- classes

    def reserved(self, names: Iterable[str], largest: int = -1) -> Ledger:
        """Gives numbers to the names that have none, in the order given, after the largest."""
        known, classes = self.numbers, list(self.classes)
        following = max([*known.values(), largest]) + 1
        for name in dict.fromkeys(names):
            if name not in known:
                classes.append(LabelClass(following, name))
                following += 1
        return replace(self, classes=tuple(classes))

    def renamed(self, old: str, new: str) -> Ledger:
        """Gives the class that has or had the name `old` another name."""
        return self._with_names({self.numbers[old]: new})

    def begun(self, old: str, new: str, version: int) -> Ledger:
        """Notes that the rows of a class in a version are about to get the name `new`."""
        return self._with_renaming(self.numbers[old], Renaming(new, version))

    def given_up(self, old: str, new: str) -> Ledger:
        """Forgets a rename that has committed nothing."""
        number = self.numbers[old]
        is_begun = any(one.number == number and one.renaming and one.renaming.name == new for one in self.classes)
        return self._with_renaming(number, None) if is_begun else self

    def settled(self, rows: Mapping[tuple[str, int], int]) -> tuple[Ledger, tuple[WrongNumber, ...]]:
        """Takes over the classes that others have written, and finds rows that contradict the ledger."""
        # A free number goes to the name with most rows that no class has. A class whose rows all have a former name has
        # that name again, as after a RESTORE.
        committed = {number: name for name, number in self._begun() if rows.get((name, number))}
        kept = {one.number for one in self.classes if rows.get((one.name, one.number))}
        ledger = self._with_names({number: name for number, name in committed.items() if number not in kept})
        classes, numbers, begun = {one.number: one for one in ledger.classes}, ledger.numbers, ledger._begun()
        wrong, seen = [], dict[int, list[str]]()
        for (name, number), count in sorted(rows.items(), key=lambda item: (-item[1], item[0])):
            if name not in numbers and number not in classes:
                classes[number], numbers[name] = LabelClass(number, name), number
            if numbers.get(name) == number or (name, number) in begun:
                seen.setdefault(number, []).append(name)
            elif number in classes:
                wrong.append(WrongNumber(name, number, count, f"which is that of {classes[number].name!r}"))
            else:
                wrong.append(WrongNumber(name, number, count, f"while its number is {numbers[name]}"))
        taken = replace(self, classes=tuple(classes[number] for number in sorted(classes)))
        renamed = {number: names[0] for number, names in seen.items() if classes[number].name not in names}
        return taken._with_names(renamed), tuple(sorted(wrong))

    def recorded(self, version: int, counts: Mapping[str, int]) -> Ledger:
        """Remembers the rows by class of a version; the names of its rows become the names of the classes."""
        numbers, current = {**dict(self._begun()), **self.numbers}, {one.number: one.name for one in self.classes}
        names = {numbers[name]: name for name, rows in counts.items() if rows and name in numbers}
        named = self
        if version >= max(self.versions, default=version):  # else another writer has recorded a later one meanwhile
            gone = {number: name for number, name in names.items() if not counts.get(current[number])}
            named = self._with_names(gone)._without_begun_before(version)
        found = {one.name: ClassRows(one.number, counts.get(one.name, 0)) for one in named.classes}
        others = sorted(name for name, rows in counts.items() if rows and name not in found)
        found |= {name: ClassRows(numbers.get(name), counts[name]) for name in others}
        versions = {**named.versions, version: found}
        return replace(named, versions=_bounded(versions, set(self.protected())))

    def _begun(self) -> set[tuple[str, int]]:
        """Returns the names, with their numbers, that classes are about to get."""
        return {(one.renaming.name, one.number) for one in self.classes if one.renaming}

    def _with_renaming(self, number: int, renaming: Renaming | None) -> Ledger:
        classes = (replace(one, renaming=renaming) if one.number == number else one for one in self.classes)
        return replace(self, classes=tuple(classes))

    def _without_begun_before(self, version: int) -> Ledger:
        """Forgets renames of versions before one whose rows are known: of two writers of a version one commits."""
        over = [one.number for one in self.classes if one.renaming and one.renaming.version < version]
        return functools.reduce(lambda ledger, number: ledger._with_renaming(number, None), over, self)

    def _with_names(self, names: Mapping[int, str]) -> Ledger:
        """Gives classes, by their numbers, their names."""
        # A class of such a name with another number goes: an ingest has reserved it that lost against the rename.
        taken = {name: number for number, name in names.items()}
        own = (one for one in self.classes if all(taken.get(name, one.number) == one.number for name in one.names))
        return replace(self, classes=tuple(one.named(names.get(one.number, one.name)) for one in own))

    # --- what protects versions

    def blocks(self, version: int) -> bool:
        """Returns whether a VACUUM is at work that may remove files of a version."""
        return self.vacuum is not None and version < self.vacuum.latest and version not in self.vacuum.keeps

    def with_pin(self, pin: Pin) -> Ledger:
        """Sets a pin, or moves the one of its name."""
        others = [one for one in self.pins if one.name != pin.name]
        return replace(self, pins=tuple(sorted([*others, pin], key=lambda one: one.name)))

    def without_pin(self, name: str) -> Ledger:
        """Removes a pin."""
        return replace(self, pins=tuple(one for one in self.pins if one.name != name))

    def version_of(self, pin: str) -> int | None:
        """Returns the version that a pin names; None if the pin does not exist."""
        return next((one.version for one in self.pins if one.name == pin), None)

    def with_use(self, use: Use) -> Ledger:
        """Notes that a run reads a version, instead of what was noted of the two before."""
        others = [one for one in self.uses if (one.run_id, one.version) != (use.run_id, use.version)]
        return replace(self, uses=(*others, use))

    def without_uses(self, is_over: Callable[[Use], bool]) -> Ledger:
        """Removes uses."""
        kept = tuple(one for one in self.uses if not is_over(one))
        return self if len(kept) == len(self.uses) else replace(self, uses=kept)

    def protected(self) -> dict[int, tuple[str, ...]]:
        """Names what protects each version: `pin <name>` and `run <id>`."""
        reasons: dict[int, list[str]] = {}
        for pin in self.pins:
            reasons.setdefault(pin.version, []).append(f"pin {pin.name}")
        for use in self.uses:
            reasons.setdefault(use.version, []).append(f"run {use.run_id}")
        return {version: tuple(by) for version, by in sorted(reasons.items())}


def _bounded(
    versions: Mapping[int, Mapping[str, ClassRows]], protected: set[int]
) -> dict[int, Mapping[str, ClassRows]]:
    """Drops the oldest versions but the protected ones, whose class numbers their runs need."""
    kept: dict[int, Mapping[str, ClassRows]] = {}
    counted = 0
    for version in sorted(versions, reverse=True):
        counted += len(versions[version]) + 1
        if counted <= MOST_COUNTED or version in protected or not kept:
            kept[version] = versions[version]
    return dict(sorted(kept.items()))
