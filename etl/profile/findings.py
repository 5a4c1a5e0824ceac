"""What a reader of a profile should look at first; pure."""

from __future__ import annotations

from typing import NamedTuple

from .data import ClassRows, Comparison, NearDuplicates, QuarantineSummary, TableProfile

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
        *_of_comparison(profile),
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
    verb = "is" if quarantine.total == 1 else "are"
    why = f"reason {main}" if len(quarantine.reasons) == 1 else f"most of them for {main}"
    text = f"{counted(quarantine.total, 'file')} ({share:.1%} of all) {verb} in quarantine, {why}."
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


def _of_comparison(profile: TableProfile) -> list[Finding]:
    found = profile.comparison
    if found is None:
        return []
    findings = [Finding(NOTE, f"Since version {found.version}: {changes_of(found)}")]
    lost = [name for name, (before, after) in found.classes.items() if before and not after]
    if lost:
        text = f"{counted(len(lost), 'class')} of version {found.version} without any image now: {_listed(lost)}."
        findings.append(Finding(WARNING, text))
    new = [name for name, (before, after) in found.classes.items() if after and not before]
    if new:
        text = f"{counted(len(new), 'class')} new since version {found.version}: {_listed(new)}."
        findings.append(Finding(NOTE, text))
    return findings


def changes_of(found: Comparison) -> str:
    """Says in one sentence how many images came, went and changed."""
    parts = [
        f"{counted(found.added, 'image')} added",
        f"{found.removed:,} removed",
        f"{found.content:,} with other content",
        f"{found.label:,} of another class",
        f"{found.split:,} in another split",
    ]
    return ", ".join(parts) + "."


def noun_of(count: int, noun: str) -> str:
    """The noun in the number that a count asks for."""
    if count == 1:
        return noun
    return f"{noun}es" if noun.endswith(("s", "x")) else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 file`, `2,000 files`."""
    return f"{count:,} {noun_of(count, noun)}"


def _images(count: int) -> str:
    return counted(count, "image")


def _name(entry: ClassRows) -> str:
    return str(entry.name)


def _count(entries: list[ClassRows], noun: str) -> str:
    return counted(len(entries), noun)


def _names(entries: list[ClassRows]) -> str:
    return _listed([_name(entry) for entry in entries])


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMES_LISTED
    return ", ".join(names[:_NAMES_LISTED]) + (f" and {more} more" if more > 0 else "")
