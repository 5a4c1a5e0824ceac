"""What a profile of one table version holds: plain numbers, which pages and plots are drawn from."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

# Edges of the histogram of a box's side relative to its image, and of the logarithm (base 2) of width over height.
RELATIVE_SIDE_BINS = 25
ASPECT_BINS = 24
ASPECT_RANGE = (-3.0, 3.0)
# Bins of the brightness of an image, from 0 (black) to 1 (white).
BRIGHTNESS_BINS = 25
# COCO's areas of small and medium objects, in pixels of the image.
SMALL_AREA, MEDIUM_AREA = 32**2, 96**2
MOST_BOXES_SHOWN = 30
# Samples of one class.
MOST_SAMPLES = 12


@dataclass(frozen=True)
class ClassRows:
    """One class.

    Attributes:
        name: Its name; None stands for the images without a class.
        number: Its number, or None.
        rows: Rows by split.
        boxes: Boxes of this class by split.
    """

    name: str | None
    number: int | None
    rows: Mapping[str, int]
    boxes: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Rows in all splits."""
        return sum(self.rows.values())

    @property
    def total_boxes(self) -> int:
        """Boxes in all splits."""
        return sum(self.boxes.values())


@dataclass(frozen=True)
class Histogram:
    """Counts between edges: len(edges) = len(counts) + 1."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class SourceSizes:
    """Sizes of the source files, upright, as they are when the profile is made.

    Attributes:
        files: Files that were read.
        looked_for: Files that were chosen; the others are on no disk of this machine, or have changed since.
        width_range: Smallest and largest width in pixels.
        height_range: Smallest and largest height.
        widths: Histogram of the widths.
        heights: The same of the heights.
        aspects: Histogram of log2(width / height).
    """

    files: int
    looked_for: int
    width_range: tuple[int, int]
    height_range: tuple[int, int]
    widths: Histogram | None
    heights: Histogram | None
    aspects: Histogram


@dataclass(frozen=True)
class Brightness:
    """How bright the stored images are: the mean grey of each, padding included, from 0 (black) to 1 (white).

    Attributes:
        mean: Mean over the images of each split.
        shares: By split, the share of its images between the edges.
        edges: Edges of `BRIGHTNESS_BINS` bins.
    """

    mean: Mapping[str, float]
    shares: Mapping[str, tuple[float, ...]]
    edges: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """How the version differs from another one.

    Attributes:
        version: The other version, which counts as the one before.
        timestamp: When that was committed.
        rows: Its rows.
        classes: Rows by class in the other version and in this one; `(no class)` stands for images without one.
        added: Images that only this version has.
        removed: Images that only the other one has.
        content: Images of other content.
        label: Images of another class.
        split: Images in another split.
    """

    version: int
    timestamp: datetime | None
    rows: int
    classes: Mapping[str, tuple[int, int]]
    added: int
    removed: int
    content: int
    label: int
    split: int


@dataclass(frozen=True)
class ImageSizes:
    """Sizes of the stored images.

    Attributes:
        common: (width, height) and rows of the most frequent sizes, most frequent first.
        distinct: How many sizes there are.
        known: Rows whose size is recorded.
        widths: Smallest and largest width in pixels.
        heights: Smallest and largest height.
        formats: Rows by stored format.
        modes: Images by Pillow's mode, of those that were opened.
        stored_kilobytes: Histogram of stored bytes / 1000.
        source_kilobytes: The same of the source files; None when unknown.
        source: Sizes of the source files; None where none can be read.
        brightness: How bright the images are; None where they were not decoded.
    """

    common: tuple[tuple[tuple[int, int], int], ...]
    distinct: int
    known: int
    widths: tuple[int, int]
    heights: tuple[int, int]
    formats: Mapping[str, int]
    modes: Mapping[str, int]
    stored_kilobytes: Histogram | None
    source_kilobytes: Histogram | None
    source: SourceSizes | None = None
    brightness: Brightness | None = None


@dataclass(frozen=True)
class BoxSizes:
    """Boxes of a version.

    Attributes:
        total: Number of boxes.
        difficult: Of these, those marked difficult.
        images: Images that have at least one.
        per_image: Images by number of boxes, of those that were annotated at all; the last key stands for more, too.
        small: Boxes below 32 x 32 pixels in area.
        medium: Boxes below 96 x 96 pixels, not small.
        large: The others.
        relative_side: Histogram of sqrt(box area / image area).
        aspect: Histogram of log2(width / height).
        width_by_height: [20][20] counts of height, then width, relative to the image.
    """

    total: int
    difficult: int
    images: int
    per_image: Mapping[int, int]
    small: int
    medium: int
    large: int
    relative_side: Histogram
    aspect: Histogram
    width_by_height: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Sample:
    """One image to look at.

    Attributes:
        jpeg: A small JPEG of it, its boxes drawn in.
        path: Its source.
        split: Its split.
        class_name: Its class, or None.
    """

    jpeg: bytes
    path: str
    split: str | None
    class_name: str | None


@dataclass(frozen=True)
class NearDuplicates:
    """Images that look alike.

    Attributes:
        compared: Images whose hashes were compared.
        plain: Images of nearly one colour, which were not.
        unreadable: Images that could not be decoded.
        max_distance: Bits of 128 by which near hashes differ at most.
        across: By (split, other split): rows of the first that have a near one in the second.
        within: By split: rows that have a near one in their own split.
        pairs: The nearest pairs across splits, with their distance.
    """

    compared: int
    plain: int
    unreadable: int
    max_distance: int
    across: Mapping[tuple[str, str], int]
    within: Mapping[str, int]
    pairs: tuple[tuple[Sample, Sample, int], ...]


@dataclass(frozen=True)
class Conflict:
    """Rows of one content in several classes."""

    classes: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True)
class QuarantineSummary:
    """The quarantine as it is now, whatever version is profiled.

    Attributes:
        reasons: Files by reason.
        examples: A few (path, error) by reason.
    """

    reasons: Mapping[str, int]
    examples: Mapping[str, Sequence[tuple[str, str]]]

    @property
    def total(self) -> int:
        """All files in it."""
        return sum(self.reasons.values())


@dataclass(frozen=True)
class TableProfile:
    """Everything that the profile of one version says.

    Attributes:
        location: The table.
        version: Its version.
        timestamp: When that was committed.
        rows: Rows of the version.
        stored_bytes: Bytes of its data files.
        files: Number of its data files.
        splits: Names of the splits, train first.
        classes: The classes by number; images without a class last.
        sizes: Sizes of the images.
        boxes: The boxes, or None when no image was annotated with any.
        samples: Samples by class name, of the classes that are shown.
        hidden_classes: Classes that have no samples here because there are too many classes to look at.
        duplicates: Near-duplicates, or None when they were not looked for.
        conflicts: Contents in several classes: the first of them.
        conflict_count: How many there are.
        quarantine: The quarantine, or None when the table has none.
        recipe: How the images were stored, as the table's properties say.
        comparison: How it differs from another version; None where that was not asked for.
    """

    location: str
    version: int
    timestamp: datetime | None
    rows: int
    stored_bytes: int
    files: int
    splits: tuple[str, ...]
    classes: tuple[ClassRows, ...]
    sizes: ImageSizes
    boxes: BoxSizes | None = None
    samples: Mapping[str | None, tuple[Sample, ...]] = field(default_factory=dict)
    hidden_classes: int = 0
    duplicates: NearDuplicates | None = None
    conflicts: tuple[Conflict, ...] = ()
    conflict_count: int = 0
    quarantine: QuarantineSummary | None = None
    recipe: Mapping[str, object] = field(default_factory=dict)
    comparison: Comparison | None = None

    @functools.cached_property
    def named_classes(self) -> tuple[ClassRows, ...]:
        """The classes that have a name."""
        return tuple(entry for entry in self.classes if entry.name is not None)

    @functools.cached_property
    def unit(self) -> str:
        """What classes are counted in: `images`, or `boxes` when only boxes have classes."""
        return "images" if any(entry.total for entry in self.named_classes) or self.boxes is None else "boxes"

    def counts(self, entry: ClassRows) -> Mapping[str, int]:
        """Images or boxes of a class by split, as `unit` says."""
        return entry.rows if self.unit == "images" else entry.boxes

    def count(self, entry: ClassRows) -> int:
        """Images or boxes of a class in all splits."""
        return sum(self.counts(entry).values())

    @property
    def rows_by_split(self) -> dict[str, int]:
        """Rows by split, of all classes."""
        return {split: sum(entry.rows.get(split, 0) for entry in self.classes) for split in self.splits}
