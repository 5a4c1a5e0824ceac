"""What a reader of a profile should look at first; pure."""

from __future__ import annotations

from typing import NamedTuple

from .data import ClassRows, NearDuplicates, QuarantineSummary, TableProfile

WARNING = "warning"
NOTE = "note"
GOOD = "good"

_FEW_ROWS = 10
_IMBALANCE = 10.0
_QUARANTINED_SHARE = 0.01
_SHARE_OFF = 0.1
_NAMES_LISTED = 6


class Finding(NamedTuple):
    """One sentence about a table.

    Attributes:
        level: `warning`, `note` or `good`.
        text: The sentence, plain text.
    """

    level: str
    text: str


def find_findings(profile: TableProfile) -> list[Finding]:
    """Lists what stands out, warnings first."""
    findings = [
        *_of_classes(profile),
        *_of_splits(profile),
        *_of_duplicates(profile.duplicates, profile.rows_by_split),
        *_of_conflicts(profile),
        *_of_quarantine(profile.quarantine, profile.rows),
        *_of_boxes(profile),
    ]
    order = (WARNING, NOTE, GOOD)
    return sorted(findings, key=lambda finding: order.index(finding.level))


def _of_classes(profile: TableProfile) -> list[Finding]:
    classes = profile.named_classes
    filled = [entry for entry in classes if profile.count(entry) > 0]
    findings = []
    if len(filled) > 1:
        largest, smallest = max(filled, key=profile.count), min(filled, key=profile.count)
        most, fewest = profile.count(largest), profile.count(smallest)
        ratio = most / fewest
        text = (
            f"The largest class ({_name(largest)}, {most:,}) has {ratio:,.1f} times the {profile.unit} "
            f"of the smallest ({_name(smallest)}, {fewest:,})."
            if most > fewest
            else f"All {len(filled):,} classes have {most:,} {profile.unit} each."
        )
        findings.append(Finding(WARNING if ratio >= _IMBALANCE else GOOD, text))
    few = [entry for entry in filled if profile.count(entry) < _FEW_ROWS]
    if few:
        findings.append(
            Finding(WARNING, f"{_count(few, 'class')} with fewer than {_FEW_ROWS} {profile.unit}: {_names(few)}.")
        )
    empty = [entry for entry in classes if entry.total == 0 and entry.total_boxes == 0]
    if empty and profile.rows:
        findings.append(
            Finding(WARNING, f"{_count(empty, 'class')} with a number and no image any more: {_names(empty)}.")
        )
    unlabelled = sum(entry.total for entry in profile.classes if entry.name is None)
    if unlabelled and filled and profile.unit == "images":
        findings.append(Finding(NOTE, f"{_images(unlabelled)} without a class."))
    return findings


def _of_splits(profile: TableProfile) -> list[Finding]:
    rows = profile.rows_by_split
    if len(rows) < 2 or not profile.rows:
        return []
    findings = []
    for split in profile.splits:
        missing = [
            entry
            for entry in profile.named_classes
            if profile.count(entry) > 0 and profile.counts(entry).get(split, 0) == 0
        ]
        if missing:
            findings.append(
                Finding(
                    WARNING, f"{_count(missing, 'class')} without any {profile.unit} in {split}: {_names(missing)}."
                )
            )
    first = profile.splits[0]
    share = rows[first] / profile.rows
    large = [entry for entry in profile.named_classes if profile.count(entry) >= 10 * _FEW_ROWS]
    off = [
        entry for entry in large if abs(profile.counts(entry).get(first, 0) / profile.count(entry) - share) > _SHARE_OFF
    ]
    if off:
        text = (
            f"{_count(off, 'class')} whose share in {first} is more than 10 points off its {share:.0%}: {_names(off)}."
        )
        findings.append(Finding(NOTE, text))
    return findings


def _of_duplicates(duplicates: NearDuplicates | None, rows: dict[str, int]) -> list[Finding]:
    if duplicates is None:
        return [Finding(NOTE, "Near-duplicates were not looked for.")]
    findings = []
    order = list(rows)
    for (split, other), near in duplicates.across.items():
        if near and order.index(other) < order.index(split):
            text = f"{_images(near)} of {split} ({near / max(rows[split], 1):.1%}) nearly equal to one of {other}."
            findings.append(Finding(WARNING, text))
    if duplicates.compared and duplicates.across and not any(duplicates.across.values()):
        findings.append(Finding(GOOD, "No image nearly equal to one of another split."))
    if duplicates.unreadable:
        findings.append(Finding(WARNING, f"{_images(duplicates.unreadable)} that cannot be decoded."))
    return findings


def _of_conflicts(profile: TableProfile) -> list[Finding]:
    if not profile.conflict_count:
        return []
    return [Finding(WARNING, f"{_images(profile.conflict_count)} in several classes, with the same bytes.")]


def _of_quarantine(quarantine: QuarantineSummary | None, rows: int) -> list[Finding]:
    if quarantine is None or quarantine.total == 0:
        return [Finding(GOOD, "Nothing is in quarantine.")]
    share = quarantine.total / max(quarantine.total + rows, 1)
    level = WARNING if share > _QUARANTINED_SHARE else NOTE
    main = max(quarantine.reasons, key=lambda reason: quarantine.reasons[reason])
    text = f"{quarantine.total:,} files ({share:.1%} of all) are in quarantine, most of them for {main}."
    return [Finding(level, text)]


def _of_boxes(profile: TableProfile) -> list[Finding]:
    boxes = profile.boxes
    if boxes is None:
        return []
    without = profile.rows - boxes.images
    findings = []
    if without:
        findings.append(Finding(NOTE, f"{_images(without)} ({without / profile.rows:.1%}) without a box."))
    if boxes.small > boxes.total / 2:
        text = f"{boxes.small / boxes.total:.0%} of the boxes are small (below 32 x 32 pixels of the stored image)."
        findings.append(Finding(NOTE, text))
    return findings


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"


def _name(entry: ClassRows) -> str:
    return str(entry.name)


def _count(entries: list[ClassRows], noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"1 {noun}" if len(entries) == 1 else f"{len(entries)} {plural}"


def _names(entries: list[ClassRows]) -> str:
    names = [_name(entry)[:60] for entry in entries[:_NAMES_LISTED]]
    more = len(entries) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
