"""What a profile of one table version holds: frames that pages and figures are drawn from."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from ..model.labels import NO_CLASS
from .duplicates import SimilarImages
from .images import Sample

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class VersionComparison:
    """How the version differs from another one.

    Attributes:
        version: The other version, which counts as the earlier one.
        timestamp: When that was committed.
        classes: Images by class: `before` in the other version, `after` in this one.
        changes: Images by kind of change, as `versions.changes` names the kinds.
    """

    version: int
    timestamp: datetime | None
    classes: pd.DataFrame
    changes: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class TableProfile:
    """The numbers of one version.

    Attributes:
        location: The table.
        version: Its version.
        timestamp: When that was committed.
        files: Number of its data files.
        file_bytes: Their bytes.
        recipe: How the images were stored, from the table's properties.
        labels: Class numbers by name.
        images: A row for each image, with the columns of `rows.read_rows`; if near-duplicates were looked for, also
            those of `images.look_at_images`.
        boxes: A row for each box.
        class_images: Images by class and split. Numbered classes precede the others; `(no class)` is last.
        class_boxes: The same for boxes.
        source_sizes: Sizes of the source files, as `sources.source_sizes` gives them.
        samples: Samples by class name, of the classes that are shown.
        hidden_classes: Classes without samples because there are too many classes to look at.
        similar: Near-duplicates; None if they were not looked for.
        conflicts: Contents in several classes: classes and paths of the first of them.
        conflict_count: Number of such contents.
        quarantine: `path`, `reason` and `error` of the files that are in quarantine now, whatever version is profiled.
        comparison: How the version differs from another one; None if none was requested.
    """

    location: str
    version: int
    timestamp: datetime | None
    files: int
    file_bytes: int
    recipe: Mapping[str, object]
    labels: Mapping[str, int]
    images: pd.DataFrame
    boxes: pd.DataFrame
    class_images: pd.DataFrame
    class_boxes: pd.DataFrame
    quarantine: pd.DataFrame
    source_sizes: pd.DataFrame | None = None
    samples: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    hidden_classes: int = 0
    similar: SimilarImages | None = None
    conflicts: tuple[tuple[list[str], list[str]], ...] = ()
    conflict_count: int = 0
    comparison: VersionComparison | None = None

    @property
    def rows(self) -> int:
        """Images of the version."""
        return len(self.images)

    @property
    def splits(self) -> list[str]:
        """Names of the splits, train first."""
        return list(self.class_images.columns)

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
