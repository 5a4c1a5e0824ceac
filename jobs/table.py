"""Looks at an image table and its versions, pins and cleans them (`lakelens table`); starts no JVM."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakelens.jobs.command import main_of, version_value

DESCRIPTION = "Look at the versions of an image table, pin them, remove files that none needs."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, text: str, work: Callable[[argparse.Namespace], dict[str, Any]]) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("table", help="path or URI of the table")
        action.set_defaults(work=work)
        return action

    add("history", "the versions, the newest first, with rows, classes, batch and user", _history)
    counts = add("counts", "rows by class of one version", _counts)
    counts.add_argument("--version", default=None, help="number, timestamp or pin; the latest when absent")
    diff = add("diff", "rows added, removed and changed between two versions, by class", _diff)
    diff.add_argument("first", help="number, timestamp or pin")
    diff.add_argument("second", nargs="?", default=None, help="the same; the latest when absent")
    add("pins", "the pins, and what else protects versions", _pins)
    pin = add("pin", "give a version a name that protects its files", _pin)
    pin.add_argument("name", help="the pin's name")
    pin.add_argument("--version", default=None, help="number or timestamp; the latest when absent")
    unpin = add("unpin", "take a pin away", _unpin)
    unpin.add_argument("name", help="the pin's name")
    vacuum = add("vacuum", "remove files that no version within the retention needs", _vacuum)
    vacuum.add_argument("--set-retention", type=int, default=None, metavar="HOURS", help="instead of the table's own")
    vacuum.add_argument("--allow-short-retention", action="store_true", help="accept fewer than 168 hours")
    vacuum.add_argument("--keep-protected", action="store_true", help="leave protected versions instead of refusing")
    vacuum.add_argument("--dry-run", action="store_true", help="only tell what would go")
    profile = add("profile", "write a page about one version: classes, sizes, samples, near-duplicates", _profile)
    profile.add_argument("--version", default=None, help="number, timestamp or pin; the latest when absent")
    profile.add_argument("--output", type=Path, default=None, help="folder for profile.html and its PNG files")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the chosen action and returns what it found."""
    result: dict[str, Any] = args.work(args)
    return {"table": args.table, **result}


def _history(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions import history

    found = history(args.table)
    for entry in found:
        rows = "files gone" if entry.rows is None else f"{entry.rows} rows"
        print(f"{entry.version:>6}  {entry.timestamp:%Y-%m-%d %H:%M:%S}  {rows:>12}  {entry.operation}")
    return {"versions": [dataclasses.asdict(entry) for entry in found]}


def _counts(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.snapshot import open_snapshot
    from lakelens.etl.versions import class_counts

    snapshot = open_snapshot(args.table, _version(args.version))
    counts = class_counts(snapshot) or {}
    _print_counts("", counts)
    return {"version": snapshot.version, "rows": snapshot.rows, "classes": counts}


def _diff(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions import diff

    found = diff(args.table, version_value(args.first), _version(args.second))
    for word in ("added", "removed", "changed"):
        _print_counts(word, getattr(found, word))
    return dataclasses.asdict(found)


def _pins(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.snapshot import open_snapshot
    from lakelens.etl.versions import protected_versions

    protected = protected_versions(open_snapshot(args.table).location)
    for version, reasons in protected.items():
        print(f"{version:>6}  {', '.join(reasons)}")
    return {"protected": {str(version): list(reasons) for version, reasons in protected.items()}}


def _pin(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl import pins
    from lakelens.etl.snapshot import open_snapshot

    snapshot = open_snapshot(args.table, _version(args.version))
    pins.pin(snapshot.location, args.name, snapshot.version)
    return {"pin": args.name, "version": snapshot.version}


def _unpin(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl import pins
    from lakelens.etl.snapshot import open_snapshot

    pins.unpin(open_snapshot(args.table).location, args.name)
    return {"unpinned": args.name}


def _vacuum(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions import vacuum

    result = vacuum(
        args.table,
        args.set_retention,
        dry_run=args.dry_run,
        keep_protected=args.keep_protected,
        allow_short_retention=args.allow_short_retention,
    )
    print(f"{len(result.files)} files {'would go' if result.dry_run else 'removed'}")
    kept = {str(version): list(reasons) for version, reasons in result.kept.items()}
    return {"files": len(result.files), "dry_run": result.dry_run, "kept": kept}


def _profile(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.profile import profile

    result = profile(args.table, _version(args.version), args.output)
    for finding in result.findings:
        print(f"{finding.level}: {finding.text}")
    return {"version": result.profile.version, "page": str(result.page), "plots": [str(p) for p in result.plots]}


def _version(text: str | None) -> int | str | None:
    return None if text is None else version_value(text)


def _print_counts(title: str, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        print(f"{title:<8} {count:>8}  {name}")


def main() -> int:
    """Runs the job with the process's own flags."""
    return main_of(DESCRIPTION, add_arguments, run)


if __name__ == "__main__":
    sys.exit(main())
