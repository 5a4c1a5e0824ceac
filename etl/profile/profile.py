"""Profiles one version of an image table: one HTML page to read, and its figures as PNG files. Needs no JVM."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import pandas as pd

from ...errors import InvalidArgumentError
from ...extras import require
from ...locations import require_writable
from ...log.snapshot import Snapshot, open_snapshot
from ...results import ReadableResult
from ...stores.data_files import write_bytes
from ...table import Table
from .data import TableProfile, read_numbers
from .figures import PLOTS, draw_plots
from .findings import ProfileFinding, find_findings
from .images import Sample, fetch_samples, find_similar, look_at_images
from .page import render_page

_MOST_SAMPLES = 12
# A page of this many small pictures stays below 5 MB.
_PICTURES = 900
_MOST_CLASSES_SHOWN = 300
_FEW_CLASSES = 6
_LARGE_SIDE, _SMALL_SIDE = 260, 128


@dataclass(frozen=True, repr=False)
class ProfileResult(ReadableResult):
    """Where a profile was written, and what it found."""

    page: Path  # The HTML page
    plots: tuple[Path, ...]  # The PNG files
    profile: TableProfile = field(repr=False)  # The numbers
    findings: tuple[ProfileFinding, ...]  # What to look at first


def profile(
    table: str | Path | Table,
    version: int | str | datetime | None = None,
    out: str | Path | None = None,
    *,
    near_duplicates: bool = True,
    samples_per_class: int | None = None,
    compare: int | str | datetime | None = None,
    quarantine: Table | None = None,
) -> ProfileResult:
    """Writes the profile of one version."""
    _check_samples(samples_per_class)
    table = Table.of(table, version)
    snapshot = open_snapshot(table)
    # All of these before the images are read, which may take hours.
    require_writable("out", Path(tempfile.gettempdir() if out is None else out))
    require("a profile", "matplotlib", "jinja2")
    before = None if compare is None else open_snapshot(table.at(compare))
    numbers = read_numbers(snapshot, before, quarantine)
    found = with_pictures(numbers, snapshot, samples_per_class, near_duplicates=near_duplicates)
    plots, findings = draw_plots(found), find_findings(found)
    if out is None:
        name = Path(snapshot.location).name[:100]
        out = tempfile.mkdtemp(prefix=f"{name}-v{snapshot.version}-profile-")
    folder = Path(out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "profile.html"
    if page.exists():
        for name in PLOTS.keys() - plots.keys():
            (folder / f"{name}.png").unlink(missing_ok=True)
    for name, data in plots.items():
        write_bytes(str(folder / f"{name}.png"), data, None)
    write_bytes(str(page), render_page(found, plots).encode("utf-8", "xmlcharrefreplace"), None)
    return ProfileResult(page, tuple(folder / f"{name}.png" for name in plots), found, tuple(findings))


def with_pictures(
    found: TableProfile, snapshot: Snapshot, samples_per_class: int | None = None, *, near_duplicates: bool = True
) -> TableProfile:
    """Adds samples of the classes and, on request, the images that look alike."""
    samples, hidden = _samples(found, snapshot, samples_per_class)
    found = replace(found, samples=samples, hidden_classes=hidden)
    if not near_duplicates:
        return found
    images = pd.concat([found.images, look_at_images(snapshot, found.images)], axis=1)
    return replace(found, images=images, similar=find_similar(snapshot, images))


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


def _check_samples(count: int | None) -> None:
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MOST_SAMPLES):
        raise InvalidArgumentError(f"samples_per_class = {count!r}: give a whole number from 0 to {_MOST_SAMPLES}")
