"""The numbers of one table version: DataFrames that findings, figures and the page are made from."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pandas as pd

from ...log.entries import commit_numbers, entry_names, info_of, read_commits
from ...log.snapshot import Snapshot
from ...table import Table
from ..commit.transaction import note_of
from ..images.recipe import RECIPE_PROPERTY
from ..model.classes import NO_CLASS
from ..quarantine import iterate_quarantine, quarantine_location
from ..versions.changes import KINDS, class_counts, diff, labels_at
from .images import Sample, SimilarImages
from .rows import read_paths, read_rows

_CONFLICTS, _CONFLICT_PATHS = 20, 4


@dataclass(frozen=True, eq=False)
class VersionComparison:
    """How the version differs from another one."""

    version: int  # The other version, which counts as the earlier one
    timestamp: datetime | None  # When that was committed
    classes: pd.DataFrame  # Images by class: `before` in the other version, `after` in this one
    changes: Mapping[str, int]  # Images by kind of change, as `versions.changes` names the kinds


@dataclass(frozen=True, eq=False)
class TableProfile:
    """The numbers of one version."""

    location: str  # The table
    version: int  # Its version
    timestamp: datetime | None  # When that was committed
    files: int  # Number of its data files
    file_bytes: int  # Their bytes
    recipe: Mapping[str, object]  # How the images were stored, from the table's properties
    labels: Mapping[str, int]  # Class numbers by name
    # A row for each image, with the columns of `rows.read_rows`; if near-duplicates were looked for, also those of
    # `images.look_at_images`
    images: pd.DataFrame
    boxes: pd.DataFrame  # A row for each box
    class_images: pd.DataFrame  # Images by class and split. Numbered classes precede the others; `(no class)` is last
    class_boxes: pd.DataFrame  # The same for boxes
    # `path`, `reason` and `error` of the files that are in quarantine now, whatever version is profiled
    quarantine: pd.DataFrame
    # Files and boxes that ingests repaired or left out, by reason, up to this version and as far back as the log goes
    repairs: pd.Series
    # Samples by class name, of the classes that are shown
    samples: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    hidden_classes: int = 0  # Classes without samples because there are too many classes to look at
    similar: SimilarImages | None = None  # Near-duplicates; None if they were not looked for
    # Contents in several classes: classes and paths of the first of them
    conflicts: tuple[tuple[list[str], list[str]], ...] = ()
    conflict_count: int = 0  # Number of such contents
    comparison: VersionComparison | None = None  # How the version differs from another one; None if none was requested

    @property
    def rows(self) -> int:
        """Images of the version."""
        return len(self.images)

    @property
    def splits(self) -> list[str]:
        """Names of the splits, train first."""
        return list(self.class_images.columns)

    @functools.cached_property
    def doubled(self) -> int:
        """Images beyond one for each path, which another writer has stored again."""
        return int(self.images["path"].duplicated().sum())

    @functools.cached_property
    def rows_by_split(self) -> pd.Series:
        """Images by split."""
        return self.class_images.sum()

    @functools.cached_property
    def unit(self) -> str:
        """What classes are counted in: `images`, or `boxes` if only boxes have classes."""
        has_classes = self.class_images.drop(NO_CLASS, errors="ignore").to_numpy().any()
        return "images" if has_classes or self.boxes.empty else "boxes"

    @functools.cached_property
    def counts(self) -> pd.DataFrame:
        """Images or boxes by class and split, as `unit` says; without `(no class)`."""
        counts = self.class_images if self.unit == "images" else self.class_boxes
        return counts.drop(NO_CLASS, errors="ignore")

    @functools.cached_property
    def reasons(self) -> pd.Series:
        """Files in quarantine by reason, most frequent first."""
        reasons = self.quarantine.groupby("reason", observed=True).size()
        return reasons.sort_values(ascending=False, kind="stable")


def by_size(counts: pd.DataFrame) -> pd.DataFrame:
    """Sorts classes by their total, then by name."""
    return counts.sort_index().loc[lambda frame: frame.sum(axis=1).sort_values(ascending=False, kind="stable").index]


def read_numbers(snapshot: Snapshot, before: Snapshot | None = None, quarantine: Table | None = None) -> TableProfile:
    """Reads the numbers that do not need an image decoded."""
    images, boxes = read_rows(snapshot)
    labels = labels_at(snapshot)
    box_splits = images["split"].take(boxes["image"]).set_axis(boxes.index)
    named = {*images["class_name"].cat.categories, *boxes["class_name"].cat.categories} - {NO_CLASS}
    classes = [*labels, *sorted(named - labels.keys())]
    without = [NO_CLASS] if (images["class_name"] == NO_CLASS).any() else []
    splits = list(images["split"].cat.categories)
    class_images = _count(images["class_name"], images["split"], [*classes, *without], splits)
    conflicts, conflict_count = _find_conflicts(images)
    paths = read_paths(snapshot, images, [row for _, rows in conflicts for row in rows])
    return TableProfile(
        location=snapshot.location,
        version=snapshot.version,
        timestamp=snapshot.timestamp,
        files=len(snapshot.files),
        file_bytes=int(snapshot.files.sizes.sum()),
        recipe=_recipe_of(snapshot.configuration),
        labels=labels,
        images=images,
        boxes=boxes,
        class_images=class_images,
        class_boxes=_count(boxes["class_name"], box_splits, [*classes, *without], splits),
        conflicts=tuple((names, sorted(paths[row] for row in rows if row in paths)) for names, rows in conflicts),
        conflict_count=conflict_count,
        quarantine=_read_quarantine(
            quarantine or Table.of(quarantine_location(snapshot.location), None, snapshot.table.storage_options)
        ),
        repairs=_repairs_until(snapshot),
        comparison=None if before is None else _compare(class_images.sum(axis=1), snapshot, before),
    )


def _find_conflicts(images: pd.DataFrame) -> tuple[list[tuple[list[str], list[int]]], int]:
    """Finds contents that are in several classes: classes and some rows of the first, and the number of contents."""
    named = images.loc[images["class_name"] != NO_CLASS, ["content", "class_name"]]
    in_classes = named.drop_duplicates()
    several = in_classes[in_classes["content"].duplicated(keep=False)]
    contents = np.unique(several["content"])
    conflicts = []
    for content in contents[:_CONFLICTS]:
        # One row of each class first: thousands of copies in one class would hide the file that is in another.
        firsts = several[several["content"] == content]
        rows = [*firsts.index, *named.index[named["content"] == content].difference(firsts.index)]
        conflicts.append((sorted(firsts["class_name"]), [int(row) for row in rows[:_CONFLICT_PATHS]]))
    return conflicts, len(contents)


def _count(classes: pd.Series, splits: pd.Series, names: list[str], columns: list[str]) -> pd.DataFrame:
    counts = classes.groupby([classes, splits], observed=True).size().unstack(fill_value=0)
    return counts.reindex(index=names, columns=columns, fill_value=0)


def _compare(after: pd.Series, snapshot: Snapshot, before: Snapshot) -> VersionComparison:
    changed = diff(before.table, before.version, snapshot.version)
    classes = pd.DataFrame({"after": after, "before": pd.Series(class_counts(before))})
    classes = classes.reindex([*after.index, *classes.index.difference(after.index)])
    changes = {kind: sum(getattr(changed, kind).values()) for kind in KINDS}
    return VersionComparison(before.version, before.timestamp, classes.fillna(0).astype(int), changes)


def _repairs_until(snapshot: Snapshot) -> pd.Series:
    """Adds up what the notes of ingests tell; replaced and deleted rows count too."""
    found: Counter[str] = Counter()
    numbers = [number for number in commit_numbers(entry_names(snapshot.table)) if number <= snapshot.version]
    for actions in read_commits(snapshot.table, numbers):
        found.update(note_of(info_of(actions).get("userMetadata")).get("repairs") or {})
    return pd.Series(dict(found.most_common()), dtype="int64")


def _read_quarantine(quarantine: Table) -> pd.DataFrame:
    rows = [(file.path, file.reason, file.error or "") for file in iterate_quarantine(quarantine)]
    return pd.DataFrame(rows, columns=["path", "reason", "error"])


def _recipe_of(configuration: Mapping[str, str]) -> dict[str, object]:
    """Reads how the images were stored; empty for a table that lakelens did not make."""
    try:
        recipe = json.loads(configuration.get(RECIPE_PROPERTY, "{}"))
    except ValueError:
        return {}
    return recipe if isinstance(recipe, dict) else {}
