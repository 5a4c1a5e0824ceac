"""Makes the first ledger of a table that an earlier lakelens has written.

It kept class numbers and aliases in table properties and in notes of commits, pins and uses in JSON files.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ..errors import LedgerError
from ..liveness import Process
from ..stores.data_files import local_form, names_in, read_bytes, remove_file
from ..stores.log_entries import commit_numbers, entry_names, info_of, read_commits
from ..stores.options import delta_options
from .ledger import ClassRows, Ledger, Pin, Use

if TYPE_CHECKING:
    from ..table import Table

LABELS_PROPERTY, ALIASES_PROPERTY, RECIPE_PROPERTY = "lakelens.labels", "lakelens.aliases", "lakelens.recipe"
_FOLDERS = ("pins", "tracked")
_MOST_COMMITS = 1_000


def convert(table: Table) -> Ledger:
    """Reads what an earlier lakelens remembers of a table; empty for a table of another writer or a new one.

    Raises:
        LedgerError: If a pin or use is damaged, so that what it protects is not known.
        StoreError: If the object store cannot be reached or refuses.
    """
    pins, uses = (list(_records(table, kind)) for kind in _FOLDERS)
    ledger = _classes(table)
    for record in pins:
        ledger = ledger.with_pin(Pin(record["name"], int(record["version"]), _time(record.get("created"))))
    for record in uses:
        ledger = ledger.with_use(_use(record))
    return ledger


def forget(table: Table) -> None:
    """Removes the files that `convert` has read, once they are in the ledger."""
    for kind in _FOLDERS:
        for file in _files(table, kind):
            with contextlib.suppress(OSError):  # an existing ledger wins over them
                remove_file(file, table.storage_options)


def _files(table: Table, kind: str) -> list[str]:
    folder = f"{table.path}/_lakelens/{kind}"
    names = sorted(names_in(folder, table.storage_options))
    return [f"{folder}/{name}" for name in names if name.endswith(".json") and not name.startswith(".")]


def _records(table: Table, kind: str) -> Iterator[dict[str, Any]]:
    for file in _files(table, kind):
        try:
            record = json.loads(read_bytes(file, table.storage_options))
            int(record["version"]), record["name" if kind == "pins" else "run_id"]
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{file} is damaged ({error!r}), so what it protects is not known. Delete the file, and pin the "
                "version again"
            ) from error
        yield record


def _use(record: Mapping[str, Any]) -> Use:
    since = _time(record.get("created"))
    found = record.get("process")
    process = None
    if isinstance(found, dict):
        process = Process("another host", str(found.get("machine")), int(found["pid"]), float(found["started"]))
    renewed = _time(record["renewed"]) if "renewed" in record else since
    return Use(record["run_id"], int(record["version"]), since, renewed, process, record.get("tracking_uri"))


def _time(text: object) -> datetime:
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return datetime.now(timezone.utc)
    return when.replace(tzinfo=timezone.utc) if when.tzinfo is None else when


def _classes(table: Table) -> Ledger:
    """Reads class numbers and rows by class: the notes win, as a model may have been trained on them."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    path = local_form(table.path) or table.path
    try:
        opened = DeltaTable(path, storage_options=delta_options(table.storage_options) or None)
        properties = opened.metadata().configuration
        if not {LABELS_PROPERTY, RECIPE_PROPERTY} <= properties.keys():
            return Ledger()
        numbers = commit_numbers(entry_names(table))[-_MOST_COMMITS:]
    except (DeltaError, OSError):  # no table yet, or one that delta-rs does not read: its rows have its numbers
        return Ledger()
    commits = zip(numbers, read_commits(table, numbers), strict=True)
    noted = {number: _noted_classes(info_of(actions).get("userMetadata")) for number, actions in commits}
    newest = next((classes for _, classes in sorted(noted.items(), reverse=True) if classes), {})
    labels = {name: number for name, (number, _) in newest.items() if number is not None}
    rows = {(name, number): len(labels) - position for position, (name, number) in enumerate(labels.items())}
    stated = _json_object(properties.get(LABELS_PROPERTY))
    rows |= {(name, int(number)): 0 for name, number in stated.items() if name not in labels}
    ledger, _ = Ledger().settled(rows)
    for old, new in _json_object(properties.get(ALIASES_PROPERTY)).items():
        if new in ledger.labels and old not in ledger.numbers:
            ledger = ledger.renamed(new, old).renamed(old, new)
    versions = {
        version: {name: ClassRows(number, rows) for name, (number, rows) in classes.items() if rows is not None}
        for version, classes in sorted(noted.items())
        if classes and all(rows is not None for _, rows in classes.values())
    }
    return Ledger(classes=ledger.classes, versions=versions)


def _noted_classes(text: object) -> dict[str, tuple[int | None, int | None]]:
    """Reads number and rows by class from the note of a commit; empty where it has none."""
    try:
        return {name: (number, rows) for name, (number, rows) in _json_object(text)["classes"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _json_object(text: object) -> dict[str, Any]:
    try:
        found = json.loads(str(text))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
