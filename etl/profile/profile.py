"""Profiles one version of an image table: one HTML page to read, and its plots as PNG files. Needs no JVM."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from ...errors import InvalidArgumentError
from ...results import ReadableResult
from ..images.perceptual_hash import DEFAULT_MAX_DISTANCE
from ..log.snapshot import Snapshot, open_snapshot
from ..quarantine.listing import iterate_quarantine
from ..quarantine.table import quarantine_location
from .comparison import compare_with
from .data import MOST_SAMPLES, ClassRows, NearDuplicates, QuarantineSummary, Sample, TableProfile
from .findings import Finding, find_findings
from .images import (
    Looks,
    brightness_of,
    choose_samples,
    fetch_samples,
    find_conflicts,
    find_duplicates,
    look_at_images,
)
from .names import find_font
from .page import render_page
from .plots import PLOTS, draw_plots
from .scan import Scan, check_positive, class_rows, image_sizes, recipe_of, scan_rows
from .sheet import draw_sheet
from .sources import source_sizes

# A page of this many small pictures stays below 5 MB.
_PICTURES = 900
_MOST_CLASSES_SHOWN = 300
_FEW_CLASSES = 6
_LARGE_SIDE, _SMALL_SIDE, _PAIR_SIDE = 260, 128, 240
_PAIRS = 12
_CONFLICTS = 20
_EXAMPLES = 5
_SHEET = "samples"


@dataclass(frozen=True, repr=False)
class ProfileResult(ReadableResult):
    """Where a profile was written, and what it says.

    Attributes:
        page: The HTML page.
        plots: The PNG files.
        profile: The numbers.
        findings: What to look at first.
    """

    page: Path
    plots: tuple[Path, ...]
    profile: TableProfile
    findings: tuple[Finding, ...]


def profile(
    location: str | Path,
    version: int | str | datetime | None = None,
    output: str | Path | None = None,
    *,
    near_duplicates: bool = True,
    max_distance: int = DEFAULT_MAX_DISTANCE,
    samples_per_class: int | None = None,
    compare: int | str | datetime | None = None,
    quarantine: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ProfileResult:
    """Writes the profile of one version.

    Args:
        location: Path or URI of an image table.
        version: Number, timestamp, pin's name, or None for the latest.
        output: Folder for `profile.html` and the PNG files; a new one in the system's temporary folder when None. Files
            of an earlier profile there are overwritten, and plots that this one has no data for removed.
        near_duplicates: Whether to look for them, which decodes every image.
        max_distance: Bits of the 128 of a perceptual hash by which images that look alike may differ, 0-15.
        samples_per_class: Pictures of each class, 0-12; None chooses by the number of classes.
        compare: Another version, to say what has come and gone since; None compares with none.
        quarantine: Place of the table's quarantine; beside the table when None.
        storage_options: Access to an object store.

    Raises:
        NotADeltaTableError: If there is no table at `location`.
        VersionNotFoundError: If it has no such version, or none to compare with.
        NotAnImageTableError: If it has no column `image`.
        InvalidArgumentError: If a number is out of its range, or `output` cannot be a folder.
        MissingDependencyError: If matplotlib is not installed.
    """
    check_positive(max_distance=max_distance, samples_per_class=samples_per_class or 0)
    if samples_per_class is not None and samples_per_class > MOST_SAMPLES:
        raise InvalidArgumentError(f"samples_per_class = {samples_per_class!r} must be {MOST_SAMPLES} at most")
    snapshot = open_snapshot(location, version, storage_options)
    # Before the images are read, which may take hours.
    _check_folder(Path(tempfile.gettempdir() if output is None else output))
    find_font()
    if compare is not None:
        open_snapshot(location, compare, storage_options)
    gathered = gather_profile(
        snapshot,
        near_duplicates=near_duplicates,
        max_distance=max_distance,
        samples_per_class=samples_per_class,
        compare=compare,
        quarantine=quarantine,
        storage_options=storage_options,
    )
    plots = draw_plots(gathered)
    pictures = {_SHEET: draw_sheet(gathered)} if gathered.samples else {}
    folder = Path(output) if output is not None else _own_folder(snapshot)
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "profile.html"
    if page.exists():
        for name in {*PLOTS, _SHEET} - plots.keys() - pictures.keys():
            (folder / f"{name}.png").unlink(missing_ok=True)
    written = []
    for name, data in (plots | pictures).items():
        written.append(folder / f"{name}.png")
        _write(written[-1], data)
    _write(page, render_page(gathered, plots).encode("utf-8", "xmlcharrefreplace"))
    return ProfileResult(page, tuple(written), gathered, tuple(find_findings(gathered)))


def gather_profile(
    snapshot: Snapshot,
    *,
    near_duplicates: bool = True,
    max_distance: int = DEFAULT_MAX_DISTANCE,
    samples_per_class: int | None = None,
    compare: int | str | datetime | None = None,
    quarantine: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> TableProfile:
    """Reads what a profile says, in memory of about 60 bytes a row and one row group a thread."""
    scan = scan_rows(snapshot, storage_options)
    classes = class_rows(scan)
    compared = None if compare is None else compare_with(snapshot, compare, classes, storage_options)
    looks = look_at_images(scan, storage_options) if near_duplicates else None
    sizes = image_sizes(scan, looks.modes if looks else {}, looks.stored_bytes if looks else np.empty(0, np.float32))
    conflicts, conflict_count = find_conflicts(scan, _CONFLICTS, storage_options)
    shown = _classes_to_show(classes)
    per_class = samples_per_class if samples_per_class is not None else _samples_of_each(len(shown))
    samples = _samples(scan, shown, per_class, storage_options)
    return TableProfile(
        location=snapshot.location,
        version=snapshot.version,
        timestamp=snapshot.timestamp,
        rows=scan.rows,
        stored_bytes=int(snapshot.files.sizes.sum()),
        files=len(snapshot.files),
        splits=tuple(scan.splits),
        classes=classes,
        sizes=replace(
            sizes,
            source=source_sizes(scan, storage_options),
            brightness=None if looks is None else brightness_of(scan, looks),
        ),
        boxes=scan.boxes.summary(),
        samples=samples,
        hidden_classes=len([entry for entry in classes if entry.total or entry.total_boxes]) - len(shown),
        duplicates=_duplicates(scan, looks, max_distance, storage_options),
        conflicts=tuple(conflicts),
        conflict_count=conflict_count,
        quarantine=read_quarantine(quarantine or quarantine_location(snapshot.location), storage_options),
        recipe=recipe_of(snapshot.configuration),
        comparison=compared,
    )


def read_quarantine(location: str, storage_options: Mapping[str, str] | None = None) -> QuarantineSummary | None:
    """Counts the quarantine table at `location` by reason; None when it is empty."""
    reasons: Counter[str] = Counter()
    examples: dict[str, list[tuple[str, str]]] = {}
    for file in iterate_quarantine(location, storage_options):
        reasons[file.reason] += 1
        listed = examples.setdefault(file.reason, [])
        if len(listed) < _EXAMPLES:
            listed.append((file.path or "", (file.error or "")[:300]))
    return QuarantineSummary(dict(reasons.most_common()), examples) if reasons else None


def _duplicates(
    scan: Scan, looks: Looks | None, max_distance: int, storage_options: Mapping[str, str] | None
) -> NearDuplicates | None:
    if looks is None:
        return None
    found, pairs = find_duplicates(scan, looks, max_distance, _PAIRS)
    rows = {row for pair in pairs for row in (pair.first, pair.second)}
    pictures = fetch_samples(scan, rows, _PAIR_SIDE, storage_options)
    shown = tuple(
        (pictures[pair.first], pictures[pair.second], pair.distance)
        for pair in pairs
        if pair.first in pictures and pair.second in pictures
    )
    return replace(found, pairs=shown)


def _samples(
    scan: Scan, names: Sequence[str | None], per_class: int, storage_options: Mapping[str, str] | None
) -> dict[str | None, tuple[Sample, ...]]:
    chosen = choose_samples(scan, names, per_class)
    side = _LARGE_SIDE if len(chosen) <= _FEW_CLASSES else _SMALL_SIDE
    pictures = fetch_samples(scan, (row for rows in chosen.values() for row in rows), side, storage_options)
    samples = {name: tuple(pictures[row] for row in rows if row in pictures) for name, rows in chosen.items()}
    return {name: found for name, found in samples.items() if found}


def _classes_to_show(classes: Sequence[ClassRows]) -> list[str | None]:
    """All classes by number, or the largest and smallest when there are too many to look at."""
    filled = [entry for entry in classes if entry.total or entry.total_boxes]
    if len(filled) <= _MOST_CLASSES_SHOWN:
        return [entry.name for entry in filled]
    by_size = sorted(filled, key=lambda entry: -(entry.total or entry.total_boxes))
    return [entry.name for entry in (*by_size[: _MOST_CLASSES_SHOWN // 2], *by_size[-_MOST_CLASSES_SHOWN // 2 :])]


def _samples_of_each(classes: int) -> int:
    return max(2, min(MOST_SAMPLES, _PICTURES // max(classes, 1), 6 if classes > _FEW_CLASSES else MOST_SAMPLES))


def _own_folder(snapshot: Snapshot) -> Path:
    """Makes a folder that has nothing of the user's in it or beside it."""
    return Path(tempfile.mkdtemp(prefix=f"{Path(snapshot.location).name[:100]}-v{snapshot.version}-profile-"))


def _check_folder(folder: Path) -> None:
    """Refuses an output that is a file, or below one, or below a folder that cannot be written."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "not writable" if there.is_dir() else "a file"
        raise InvalidArgumentError(f"output = {str(folder)!r}: {there} is {why}; give another folder")


def _write(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(data)
    os.replace(temporary, path)  # noqa: PTH105
