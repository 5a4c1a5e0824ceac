"""What a reader of a profile should look at first; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from ...results import counted, some_of
from ..annotations.boxes import ORIENTATION_ASSUMED
from ..images.colours import DARK_SAMPLES
from ..model.classes import NO_CLASS
from .data import TableProfile, VersionComparison

WARNING = "warning"
NOTE = "note"
GOOD = "good"
# COCO's areas of small and medium objects, in pixels of the image.
SMALL_AREA, MEDIUM_AREA = 32**2, 96**2

_FEW_ROWS = 10
_IMBALANCE = 10.0
_QUARANTINED_SHARE = 0.01
_SHARE_OFF = 0.1
_NAMES_LISTED = 6


# What ingests have counted that an option changes.
_ADVICE = {
    DARK_SAMPLES: "{} of more than 8 bits stored dark, below 1/16 of the range; ingest into a new table with --depth.",
    ORIENTATION_ASSUMED: "{} turned by EXIF whose boxes were taken as drawn on the upright image; "
    "--boxes-drawn-on in a new table decides.",
}


class ProfileFinding(NamedTuple):
    """One sentence about a table."""

    level: str  # `warning`, `note` or `good`
    text: str  # The sentence, plain text


def find_findings(profile: TableProfile) -> list[ProfileFinding]:
    """Lists what stands out, warnings first."""
    parts = (_of_classes, _of_splits, _of_duplicates, _of_quarantine, _of_repairs, _of_boxes, _of_comparison)
    findings = [ProfileFinding(*found) for part in parts for found in part(profile)]
    return sorted(findings, key=lambda finding: (WARNING, NOTE, GOOD).index(finding.level))


def _of_classes(profile: TableProfile) -> Iterator[tuple[str, str]]:
    totals, unit = profile.counts.sum(axis=1), profile.unit
    filled = totals[totals > 0]
    if len(filled) > 1:
        largest, smallest = filled.idxmax(), filled.idxmin()
        most, fewest = int(filled[largest]), int(filled[smallest])
        text = f"All {len(filled):,} classes have {most:,} {unit} each."
        if most > fewest:
            text = (
                f"The largest class ({largest}, {most:,}) has {most / fewest:,.1f} times the {unit} of the smallest "
                f"({smallest}, {fewest:,})."
            )
        yield (WARNING if most / fewest >= _IMBALANCE else GOOD), text
    few = filled.index[filled < _FEW_ROWS]
    if len(few):
        yield WARNING, f"{_classes(few)} with fewer than {_FEW_ROWS} {unit}: {_listed(few)}."
    both = profile.class_images.sum(axis=1) + profile.class_boxes.sum(axis=1)
    empty = both.index[both == 0]
    if len(empty) and profile.rows:
        yield WARNING, f"{_classes(empty)} with a number and no image any more: {_listed(empty)}."
    if len(filled) and unit == "images" and NO_CLASS in profile.class_images.index:
        yield NOTE, f"{_images(profile.class_images.loc[NO_CLASS].sum())} without a class."


def _of_splits(profile: TableProfile) -> Iterator[tuple[str, str]]:
    if len(profile.splits) < 2 or not profile.rows:
        return
    totals = profile.counts.sum(axis=1)
    for split in profile.splits:
        missing = profile.counts.index[(totals > 0) & (profile.counts[split] == 0)]
        if len(missing):
            yield WARNING, f"{_classes(missing)} without any {profile.unit} in {split}: {_listed(missing)}."
    first = profile.splits[0]
    share = profile.rows_by_split[first] / profile.rows
    off = ((profile.counts[first] / totals - share).abs() > _SHARE_OFF) & (totals >= 10 * _FEW_ROWS)
    if off.any():
        names = totals.index[off]
        yield (
            NOTE,
            f"{_classes(names)} whose share in {first} is more than 10 points off its {share:.0%}: {_listed(names)}.",
        )


def _of_duplicates(profile: TableProfile) -> Iterator[tuple[str, str]]:
    if profile.doubled:
        yield (
            WARNING,
            f"{_images(profile.doubled)} stored again by another writer, under a path that another row has; "
            "`lakelens table repair` removes them.",
        )
    if profile.conflict_count:
        yield WARNING, f"{_images(profile.conflict_count)} in several classes, with the same bytes."
    similar = profile.similar
    if similar is None:
        yield NOTE, "Near-duplicates were not looked for."
        return
    across = 0
    for place, split in enumerate(profile.splits):
        for other in profile.splits[:place]:
            near = int(similar.near.loc[split, other])
            across += near
            if near:
                share = near / profile.rows_by_split[split]
                yield WARNING, f"{_images(near)} of {split} ({share:.1%}) nearly equal to one of {other}."
    if similar.compared and len(profile.splits) > 1 and not across:
        yield GOOD, "No image nearly equal to one of another split."
    if similar.unreadable:
        yield WARNING, f"{_images(similar.unreadable)} that cannot be decoded."


def _of_quarantine(profile: TableProfile) -> Iterator[tuple[str, str]]:
    total = len(profile.quarantine)
    if not total:
        yield GOOD, "Nothing is in quarantine."
        return
    share, main = total / (total + profile.rows), profile.reasons.index[0]
    why = f"reason {main}" if len(profile.reasons) == 1 else f"most of them for {main}"
    level = WARNING if share > _QUARANTINED_SHARE else NOTE
    yield level, f"{counted(total, 'file')} ({share:.1%} of all) {'is' if total == 1 else 'are'} in quarantine, {why}."


def _of_repairs(profile: TableProfile) -> Iterator[tuple[str, str]]:
    for reason, advice in _ADVICE.items():
        if reason in profile.repairs.index:
            yield WARNING, advice.format(_images(profile.repairs[reason]))


def _of_boxes(profile: TableProfile) -> Iterator[tuple[str, str]]:
    if profile.boxes.empty:
        return
    without = profile.rows - int((profile.images["boxes"] > 0).sum())
    if without:
        yield NOTE, f"{_images(without)} ({without / profile.rows:.1%}) without a box."
    if profile.boxes["difficult"].all():
        yield WARNING, "All boxes are difficult or of crowds: a detector trains on no object."
    small = (profile.boxes["width"] * profile.boxes["height"] < SMALL_AREA).mean()
    if small > 0.5:
        yield NOTE, f"{small:.0%} of the boxes are small (below 32 x 32 pixels of the stored image)."


def _of_comparison(profile: TableProfile) -> Iterator[tuple[str, str]]:
    found = profile.comparison
    if found is None:
        return
    yield NOTE, f"Since version {found.version}: {changes_of(found)}"
    before, after = found.classes["before"], found.classes["after"]
    lost, new = found.classes.index[(before > 0) & (after == 0)], found.classes.index[(before == 0) & (after > 0)]
    if len(lost):
        yield WARNING, f"{_classes(lost)} of version {found.version} without any image now: {_listed(lost)}."
    if len(new):
        yield NOTE, f"{_classes(new)} new since version {found.version}: {_listed(new)}."


def changes_of(found: VersionComparison) -> str:
    """Reports in one sentence how many images were added, removed and changed."""
    changes = found.changes
    return (
        f"{_images(changes['added'])} added, {changes['removed']:,} removed, {changes['content']:,} with other "
        f"content, {changes['label']:,} of another class, {changes['split']:,} in another split."
    )


def _images(count: int) -> str:
    return counted(int(count), "image")


def _classes(names: pd.Index) -> str:
    return counted(len(names), "class")


def _listed(names: pd.Index) -> str:
    return some_of(list(names), _NAMES_LISTED)
