"""Shows, compares, pins, restores, cleans and edits versions of an image table (`lakelens table`).

Only the actions that write rows start a JVM: `restore`, `repair`, `optimize`, `delete` and `rename-class`.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakelens.errors import InvalidArgumentError
from lakelens.jobs.command import Run, add_action, add_session_arguments, sees_the_files_of_executors, session_of
from lakelens.locations import table_and_version
from lakelens.log.snapshot import open_snapshot
from lakelens.table import Table, Version

if TYPE_CHECKING:
    from lakelens.etl.image_table import ImageTable

_Add = Callable[..., argparse.ArgumentParser]

DESCRIPTION = "Show, compare, pin, restore, clean and edit the versions of an image table."
_OTHER_VACUUMS = "The VACUUM of Spark and that of Databricks ignore pins and runs: use `lakelens table vacuum`."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, text: str, work: Run, more: str = "") -> argparse.ArgumentParser:
        action = add_action(actions, name, text, partial(_on_table, work), more)
        metavar = "TABLE[@VERSION]" if work in _OF_ONE_VERSION else "table"
        action.add_argument("table", metavar=metavar, help="path or URI of the table")
        return action

    _add_views(add)
    _add_protection(add)
    _add_edits(add)


def _add_views(add: _Add) -> None:
    text = "list the versions, newest first, with rows, classes, batch and user"
    listed = add("history", text, _history)
    listed.add_argument("--limit", type=int, help="list only this many of the newest; all by default")
    add("counts", "count the rows of one version, and their boxes, by class", _counts)
    diff = add("diff", "count the rows that differ between two versions, by class", _diff)
    diff.add_argument("first", help="number, timestamp or pin")
    diff.add_argument("second", nargs="?", help="the same; the latest by default")
    listed = add("changes", "list the rows that differ between two versions", _changes)
    listed.add_argument("first", help="number, timestamp or pin")
    listed.add_argument("second", nargs="?", help="number, timestamp or pin; the latest by default")
    listed.add_argument("--limit", type=int, default=1000, help="list at most this many; all are counted")
    quarantine = add("quarantine", "list the files that are not stored, with their reasons", _quarantine)
    quarantine.add_argument("--reason", help="only files with this reason")
    quarantine.add_argument("--batch-id", help="only files of this ingest")
    quarantine.add_argument("--limit", type=int, default=1000, help="list at most this many files; all are counted")
    profile = add("profile", "write an HTML page about one version: classes, sizes, samples, near-duplicates", _profile)
    profile.add_argument(
        "--samples", type=int, metavar="N", help="images per class, 0-12; chosen by the number of classes by default"
    )
    profile.add_argument(
        "--no-near-duplicates",
        action="store_true",
        help="skip the search for near-duplicates, which decodes every image",
    )
    profile.add_argument("--compare", metavar="VERSION", help="also show the changes since this version")
    profile.add_argument(
        "--out",
        type=Path,
        help="folder for profile.html and its PNG files; a new one in the temporary folder by default",
    )


def _add_protection(add: _Add) -> None:
    add("tracked", "list what protects which version from `vacuum` since when", _tracked, _OTHER_VACUUMS)
    pin = add("pin", "give a version a name that protects its files", _pin, _OTHER_VACUUMS)
    pin.add_argument("name", help="the pin's name")
    pin.add_argument("--replace", action="store_true", help="move an existing pin of that name")
    unpin = add("unpin", "remove a pin", _unpin)
    unpin.add_argument("name", help="the pin's name")
    untrack = add("untrack", "remove the protection of versions that a run has read", _untrack)
    untrack.add_argument("run_id", nargs="?", help="the run's id, as `tracked` shows it")
    untrack.add_argument(
        "--older-than",
        type=_age,
        metavar="AGE",
        help="all runs that began longer ago and are over: a number with d or h, such as 90d",
    )
    vacuum = add("vacuum", "remove data files that no version within the retention needs", _vacuum, _OTHER_VACUUMS)
    vacuum.add_argument(
        "--set-retention", type=int, metavar="HOURS", help="retention to use instead of the table's own"
    )
    vacuum.add_argument("--allow-short-retention", action="store_true", help="accept fewer than 168 hours")
    vacuum.add_argument(
        "--keep-protected", action="store_true", help="keep the files of protected versions instead of failing"
    )
    vacuum.add_argument("--dry-run", action="store_true", help="print what would be removed")


def _add_edits(add: _Add) -> None:
    restore = add("restore", "make a new version with the rows of an old one (starts Spark)", _restore)
    repair = add(
        "repair",
        "correct class numbers that other writers have damaged, and remove rows stored again (starts Spark)",
        _repair,
    )
    repair.add_argument("--dry-run", action="store_true", help="print what would change, change nothing")
    optimize = add("optimize", "rewrite small data files into larger ones (starts Spark)", _optimize)
    delete = add("delete", "delete rows; their files stay out until their content changes (starts Spark)", _delete)
    delete.add_argument("where", help="SQL condition on the columns, such as \"label_name = 'cat' AND width < 32\"")
    rename = add("rename-class", "rename a class; its number stays (starts Spark)", _rename_class)
    rename.add_argument("old", help="the class's name")
    rename.add_argument("new", help="its new name, which no class may have")
    for action in (restore, repair, optimize, delete, rename):
        add_session_arguments(action)


def _on_table(work: Run, args: argparse.Namespace) -> dict[str, Any]:
    """Runs an action on its table and returns what it found."""
    if work in _OF_ONE_VERSION:
        table = Table.of(args.table)
    else:
        table = Table.unversioned(args.table, f"lakelens table {args.action}")
    args.table, args.version = table_and_version(args.table)[0], table.version
    result = work(args)
    return {"table": args.table, **result}


def _history(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions.history import history

    found = history(Table.of(args.table), args.limit)
    for entry in found:
        rows = "rows unknown" if entry.rows is None else f"{entry.rows} rows"
        # Whole, so that TABLE@TIME is this version and not the one before.
        when = "" if entry.timestamp is None else entry.timestamp.isoformat(" ", "milliseconds").replace("+00:00", "Z")
        what = entry.operation if entry.restored is None else f"{entry.operation} of version {entry.restored}"
        who = f"  {entry.user}" if entry.user else ""
        batch = f"  {entry.source} (batch {entry.batch_id})" if entry.batch_id else ""
        print(f"{entry.version:>6}  {when:<24}  {rows:>12}  {what}{who}{batch}")
    return {"versions": [dataclasses.asdict(entry) for entry in found]}


def _counts(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions.changes import box_counts, class_counts

    snapshot = open_snapshot(Table.of(args.table, args.version))
    counts, boxes = class_counts(snapshot), box_counts(snapshot)
    _print_counts("images" if boxes else "", counts)
    _print_counts("boxes", boxes)
    return {"version": snapshot.version, "rows": snapshot.rows, "classes": counts, "boxes": boxes}


def _diff(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions.changes import KINDS, diff

    found = diff(Table.of(args.table), args.first, args.second)
    for word in KINDS:
        _print_counts(word, getattr(found, word))
    return dataclasses.asdict(found)


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions.changes import changes

    found = changes(Table.of(args.table), args.first, args.second)
    rows = found.slice(0, args.limit).to_pylist()
    for row in rows:
        print(f"{row['change']:<8} {row['label_name'] or '(no class)'}  {row['path']}")
    if len(rows) < found.num_rows:
        print(f"... and {found.num_rows - len(rows)} more (--limit)")
    return {"count": found.num_rows, "changes": rows}


def _table(args: argparse.Namespace) -> Table:
    """Gives the table of the arguments, and checks that it exists."""
    from lakelens.log.opening import require_entries

    table = Table.unversioned(args.table, args.action)
    require_entries(table)
    return table


def _tracked(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions.vacuum import protections

    found = protections(_table(args))
    for one in found:
        since = "" if one.since is None else one.since.isoformat(" ", "seconds").replace("+00:00", "Z")
        print(f"{one.version:>6}  {since:<20}  {one.by}")
    return {"protected": [dataclasses.asdict(one) for one in found]}


def _pin(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions.vacuum import pin_version

    number = pin_version(Table.of(args.table, args.version), args.name, replace=args.replace)
    return {"pin": args.name, "version": number}


def _unpin(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.ledger.protection import unpin

    unpin(_table(args), args.name)
    return {"unpinned": args.name}


def _untrack(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.image_table import ImageTable

    count = ImageTable(None, args.table).untrack(args.run_id, older_than=args.older_than)
    print(f"{count} version{'s' if count != 1 else ''} untracked")
    return {"run": args.run_id, "versions": count}


def _restore(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions.delta_commands import restore

    if args.version is None:
        raise InvalidArgumentError(f"{args.table}: name the version to restore, as {args.table}@0")
    spark = _session_of(args, "restore", args.version)
    result = restore(spark, Table.of(args.table), args.version)
    for word in ("added", "removed", "changed"):
        _print_counts(word, getattr(result, word))
    return dataclasses.asdict(result)


def _repair(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions.edits import repair

    spark, table = _session_of(args, "repair"), Table.of(args.table)
    plan = repair(spark, table, dry_run=True)
    for line in (*plan.findings, *plan.changes):
        print(line)
    if not plan.findings:
        print("the class numbers are in order")
    return dataclasses.asdict(plan if args.dry_run or not plan.findings else repair(spark, table))


def _optimize(args: argparse.Namespace) -> dict[str, Any]:
    return _edited(args, "optimize", lambda table: table.optimize())


def _delete(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.spark.failures import check_condition

    check_condition(args.where)
    return _edited(args, "delete", lambda table: table.delete(args.where))


def _rename_class(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions.edits import check_names

    check_names(Table.of(args.table), args.old, args.new)
    return _edited(args, "rename-class", lambda table: table.rename_class(args.old, args.new))


def _edited(args: argparse.Namespace, action: str, work: Callable[[ImageTable], Any]) -> dict[str, Any]:
    from lakelens.etl.image_table import ImageTable

    result = work(ImageTable(_session_of(args, action), args.table))
    print(result)
    return dataclasses.asdict(result)


def _session_of(args: argparse.Namespace, action: str, version: Version = None) -> Any:
    """Opens a session once the table and the version are known to be there."""
    from lakelens.locations import has_scheme
    from lakelens.log.snapshot import check_version

    open_session = session_of(args, f"lakelens table {action} {args.table}")
    # Elsewhere, and in object stores, Spark's own settings may be all that leads to the table.
    if sees_the_files_of_executors(args):
        table = Table.of(args.table, version)
        if not has_scheme(table.location):
            check_version(table)
    return open_session()


def _quarantine(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.image_table import ImageTable

    found = ImageTable(None, args.table).quarantine(batch_id=args.batch_id, reason=args.reason, limit=args.limit)
    for file in found.files:
        size = "" if file.source_length is None else f"{file.source_length} bytes"
        print(f"{file.reason:<18} {size:>16}  {file.path}  {file.error or ''}  (batch {file.batch_id})")
    if len(found.files) < found.count:
        print(f"... and {found.count - len(found.files)} more (--limit)")
    _print_counts("", found.reasons)
    files = [dataclasses.asdict(file) for file in found.files]
    return {"count": found.count, "reasons": found.reasons, "files": files}


def _vacuum(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.versions.vacuum import vacuum

    result = vacuum(
        Table.of(args.table),
        args.set_retention,
        dry_run=args.dry_run,
        keep_protected=args.keep_protected,
        allow_short_retention=args.allow_short_retention,
    )
    for path in result.files if result.dry_run else ():
        print(path)
    print(f"{len(result.files)} files {'would go' if result.dry_run else 'removed'}")
    for version, reasons in result.unreadable.items():
        print(f"version {version} ({', '.join(reasons)}) is no longer in the log: nothing could be kept for it")
    return {
        "files": len(result.files),
        "dry_run": result.dry_run,
        "paths": list(result.files) if result.dry_run else None,
        "kept": {str(version): list(reasons) for version, reasons in result.kept.items()},
        "unreadable": {str(version): list(reasons) for version, reasons in result.unreadable.items()},
    }


def _profile(args: argparse.Namespace) -> dict[str, Any]:
    from lakelens.etl.profile.profile import profile

    result = profile(
        args.table,
        args.version,
        args.out,
        near_duplicates=not args.no_near_duplicates,
        samples_per_class=args.samples,
        compare=args.compare,
    )
    for finding in result.findings:
        print(f"{finding.level}: {finding.text}")
    print(f"page: {result.page}")
    return {"version": result.profile.version, "page": str(result.page), "plots": [str(p) for p in result.plots]}


def _age(text: str) -> timedelta:
    match = re.fullmatch(r"([1-9][0-9]{0,5})([dh])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age: give a number with d or h, such as 90d or 12h")
    return timedelta(**{"days" if match[2] == "d" else "hours": int(match[1])})


# Their table may be given as table@version; the others work on the table with all its versions.
_OF_ONE_VERSION = (_counts, _profile, _pin, _restore)


def _print_counts(title: str, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        print(f"{title:<8} {count:>8}  {name}")


if __name__ == "__main__":  # spark-submit jobs/table.py
    from lakelens.jobs.cli import main

    sys.exit(main(["table", *sys.argv[1:]]))
