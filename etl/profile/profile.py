"""Profiles one version of an image table: one HTML page to read, and its figures as PNG files. Needs no JVM."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError
from ...extras import require
from ...locations import require_writable
from ...log.snapshot import Snapshot
from ...results import ReadableResult
from ...stores.data_files import write_bytes
from ...table import Table
from ..images.perceptual_hash import DEFAULT_MAX_DISTANCE
from ..images.recipe import RECIPE_PROPERTY
from ..model.labels import NO_CLASS
from ..quarantine.listing import iterate_quarantine
from ..quarantine.table import quarantine_location
from ..versions.changes import KINDS, diff
from ..versions.classes import class_counts, labels_at
from .data import TableProfile, VersionComparison
from .duplicates import find_conflicts, find_similar
from .figures import PLOTS, draw_plots
from .findings import ProfileFinding, find_findings
from .images import Sample, fetch_samples, look_at_images
from .page import render_page
from .rows import read_paths, read_rows
from .sources import source_sizes

if TYPE_CHECKING:
    import pandas as pd

_MOST_SAMPLES = 12
# A page of this many small pictures stays below 5 MB.
_PICTURES = 900
_MOST_CLASSES_SHOWN = 300
_FEW_CLASSES = 6
_LARGE_SIDE, _SMALL_SIDE, _PAIR_SIDE = 260, 128, 240


@dataclass(frozen=True, repr=False)
class ProfileResult(ReadableResult):
    """Where a profile was written, and what it found.

    Attributes:
        page: The HTML page.
        plots: The PNG files.
        profile: The numbers.
        findings: What to look at first.
    """

    page: Path
    plots: tuple[Path, ...]
    profile: TableProfile = field(repr=False)
    findings: tuple[ProfileFinding, ...]


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
            of an earlier profile there are overwritten, and plots that this one has no data for are removed.
        near_duplicates: Whether to look for them, which decodes every image.
        max_distance: Bits of the 128 of a perceptual hash by which images that look alike may differ, 0-15.
        samples_per_class: Pictures of each class, 0-12; None chooses by the number of classes.
        compare: Another version, to report what was added and removed since; None compares with none.
        quarantine: Location of the table's quarantine; next to the table when None.
        storage_options: Access to an object store.

    Raises:
        NotADeltaTableError: If there is no table at `location`.
        VersionNotFoundError: If it has no such version, or none to compare with.
        NotAnImageTableError: If it has no column `image`.
        InvalidArgumentError: If a number is out of its range, or `output` cannot be a folder.
        MissingDependencyError: If matplotlib or Jinja2 is not installed.
    """
    _check_number("max_distance", max_distance, 15)
    _check_number("samples_per_class", samples_per_class, _MOST_SAMPLES)
    table = Table.of(location, version, storage_options)
    snapshot = table.snapshot()
    # All of these before the images are read, which may take hours.
    require_writable("output", Path(tempfile.gettempdir() if output is None else output))
    require("a profile", "matplotlib", "jinja2")
    before = None if compare is None else table.at(compare).snapshot()
    found = read_numbers(snapshot, before, quarantine)
    found = with_pictures(found, snapshot, max_distance if near_duplicates else None, samples_per_class)
    plots, findings = draw_plots(found), find_findings(found)
    folder = Path(output).absolute() if output is not None else _new_folder(snapshot)
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "profile.html"
    if page.exists():
        for name in PLOTS.keys() - plots.keys():
            (folder / f"{name}.png").unlink(missing_ok=True)
    for name, data in plots.items():
        write_bytes(str(folder / f"{name}.png"), data, None)
    write_bytes(str(page), render_page(found, plots).encode("utf-8", "xmlcharrefreplace"), None)
    return ProfileResult(page, tuple(folder / f"{name}.png" for name in plots), found, tuple(findings))


def read_numbers(snapshot: Snapshot, before: Snapshot | None = None, quarantine: str | None = None) -> TableProfile:
    """Reads the numbers that do not need an image decoded.

    Args:
        snapshot: The version.
        before: The version to compare it with.
        quarantine: Location of the quarantine; next to the table when None.
    """
    images, boxes = read_rows(snapshot)
    labels = labels_at(snapshot)
    box_splits = images["split"].take(boxes["image"]).set_axis(boxes.index)
    named = {*images["class_name"].cat.categories, *boxes["class_name"].cat.categories} - {NO_CLASS}
    classes = [*labels, *sorted(named - labels.keys())]
    without = [NO_CLASS] if (images["class_name"] == NO_CLASS).any() else []
    splits = list(images["split"].cat.categories)
    conflicts, conflict_count = find_conflicts(images)
    rows = [row for _, conflict in conflicts for row in conflict]
    paths = read_paths(snapshot, images, rows)
    found = TableProfile(
        location=snapshot.location,
        version=snapshot.version,
        timestamp=snapshot.timestamp,
        files=len(snapshot.files),
        file_bytes=int(snapshot.files.sizes.sum()),
        recipe=_recipe_of(snapshot.configuration),
        labels=labels,
        images=images,
        boxes=boxes,
        class_images=_count(images["class_name"], images["split"], [*classes, *without], splits),
        class_boxes=_count(boxes["class_name"], box_splits, [*classes, *without], splits),
        source_sizes=source_sizes(snapshot, images),
        conflicts=tuple((names, sorted(paths[row] for row in rows if row in paths)) for names, rows in conflicts),
        conflict_count=conflict_count,
        quarantine=_read_quarantine(
            Table.of(quarantine or quarantine_location(snapshot.location), None, snapshot.table.storage_options)
        ),
    )
    return found if before is None else replace(found, comparison=_compare(found, before))


def with_pictures(
    found: TableProfile,
    snapshot: Snapshot,
    max_distance: int | None = DEFAULT_MAX_DISTANCE,
    samples_per_class: int | None = None,
) -> TableProfile:
    """Adds near-duplicates, unless `max_distance` is None, and samples of the classes."""
    import pandas as pd

    images, similar = found.images, None
    if max_distance is not None:
        images = pd.concat([images, look_at_images(snapshot, images)], axis=1)
        similar, pairs = find_similar(images, max_distance)
        rows = {row for pair in pairs for row in pair[:2]}
        pictures = fetch_samples(snapshot, images, rows, _PAIR_SIDE)
        shown = tuple((pictures[one], pictures[other], distance) for one, other, distance in pairs)
        similar = replace(similar, pairs=shown)
    samples, hidden = _samples(found, snapshot, samples_per_class)
    return replace(found, images=images, similar=similar, samples=samples, hidden_classes=hidden)


def _count(classes: pd.Series, splits: pd.Series, names: list[str], columns: list[str]) -> pd.DataFrame:
    counts = classes.groupby([classes, splits], observed=True).size().unstack(fill_value=0)
    return counts.reindex(index=names, columns=columns, fill_value=0)


def _compare(found: TableProfile, before: Snapshot) -> VersionComparison:
    import pandas as pd

    changed = diff(before.table, before.version, found.version)
    classes = pd.DataFrame({"after": found.class_images.sum(axis=1), "before": pd.Series(class_counts(before))})
    classes = classes.reindex([*found.class_images.index, *classes.index.difference(found.class_images.index)])
    changes = {kind: sum(getattr(changed, kind).values()) for kind in KINDS}
    return VersionComparison(before.version, before.timestamp, classes.fillna(0).astype(int), changes)


def _read_quarantine(quarantine: Table) -> pd.DataFrame:
    import pandas as pd

    rows = [(file.path, file.reason, file.error or "") for file in iterate_quarantine(quarantine)]
    return pd.DataFrame(rows, columns=["path", "reason", "error"])


def _samples(
    found: TableProfile, snapshot: Snapshot, per_class: int | None
) -> tuple[dict[str, tuple[Sample, ...]], int]:
    """Samples by class, chosen by their content hash, so that no order of the source biases them."""
    counts = found.class_images if found.unit == "images" else found.class_boxes
    totals = counts.sum(axis=1)
    filled = totals[(totals + found.class_boxes.sum(axis=1)) > 0]
    shown = filled
    if len(filled) > _MOST_CLASSES_SHOWN:
        by_size = filled.sort_values(ascending=False, kind="stable")
        shown = by_size.iloc[[*range(_MOST_CLASSES_SHOWN // 2), *range(-_MOST_CLASSES_SHOWN // 2, 0)]]
    if per_class is None:
        most = 6 if len(shown) > _FEW_CLASSES else _MOST_SAMPLES
        per_class = max(2, min(most, _PICTURES // max(len(shown), 1)))
    if found.unit == "images":
        rows = found.images[["class_name", "content"]].reset_index(names="image")
    else:
        rows = found.boxes[["image", "class_name"]].dropna().drop_duplicates()
        rows = rows.assign(content=found.images["content"].to_numpy()[rows["image"]])
    chosen = rows.sort_values("content", kind="stable").groupby("class_name", observed=True).head(per_class)
    of_class = {name: list(rows) for name, rows in chosen.groupby("class_name", observed=True)["image"]}
    of_class = {str(name): of_class[name] for name in shown.index if name in of_class}
    side = _LARGE_SIDE if len(of_class) <= _FEW_CLASSES else _SMALL_SIDE
    rows = [row for of_name in of_class.values() for row in of_name]
    pictures = fetch_samples(snapshot, found.images, rows, side)
    samples = {name: tuple(pictures[row] for row in rows if row in pictures) for name, rows in of_class.items()}
    return {name: of_name for name, of_name in samples.items() if of_name}, len(filled) - len(shown)


def _recipe_of(configuration: Mapping[str, str]) -> dict[str, object]:
    """Reads how the images were stored; empty for a table that lakelens did not make."""
    try:
        recipe = json.loads(configuration.get(RECIPE_PROPERTY, "{}"))
    except ValueError:
        return {}
    return recipe if isinstance(recipe, dict) else {}


def _check_number(name: str, value: int | None, most: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most):
        raise InvalidArgumentError(f"{name} = {value!r}: give a whole number from 0 to {most}")


def _new_folder(snapshot: Snapshot) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{Path(snapshot.location).name[:100]}-v{snapshot.version}-profile-"))
