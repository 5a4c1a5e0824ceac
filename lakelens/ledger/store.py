"""A table's ledger: a small Delta table in the table's folder, changed by compare-and-swap.

Each change rewrites the whole ledger as the next version of that Delta table. Delta's commit is the only lock: a writer
whose version was taken by another one reads again and tries again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, LedgerError, NoSpaceError, StoreError, TableConflictError
from ..liveness import Process
from ..retries import Retries
from ..stores.clients import delta_options, require_known_store, require_no_fork, store_error
from ..stores.data_files import (
    delta_uri,
    has_conditional_writes,
    local_form,
    misread_part,
    names_in,
    read_bytes,
    unwritable_part,
)
from .ledger import ClassRows, LabelClass, Ledger, Pin, Renaming, Use, Vacuum

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from ..table import Table

FOLDER = "_lakelens"
_FORMAT = 1
_RETRIES = Retries(attempts=100, first_wait_s=0.01, longest_wait_s=1.0)
# Old files and commits of the ledger are removed after this number of changes, when no reader can need them any more.
_TIDY_EVERY = 100
_FREE_BYTES = 1 << 20
_CONFIGURATION = {
    "delta.checkpointInterval": str(_TIDY_EVERY),
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|↳")
_OUT_OF_SPACE = re.compile(rf"\b(os error |code: |Errno )({errno.ENOSPC}|{errno.EDQUOT})\b")


def read(table: Table) -> Ledger:
    """Reads the ledger of a table; an empty one where there is none, as of a clone or of another writer's table."""
    found = _open(table)
    return Ledger() if found is None else _ledger_of(table, found)


def change(table: Table, update: Callable[[Ledger], Ledger]) -> Ledger:
    """Changes the ledger of a table; returns what it is now."""
    for attempt in range(_RETRIES.attempts):
        _RETRIES.wait(attempt)
        found = _open(table)
        before = Ledger() if found is None else _ledger_of(table, found)
        after = update(before)  # may raise a conflict, which ends the change
        if after == before or (_create(table, after) if found is None else _swap(table, found, after)):
            return after
    raise TableConflictError(f"{table.path}: other writers kept changing its ledger; try again when they are done")


def path_of(table: Table) -> str:
    """Returns the path or URI of the ledger."""
    location = f"{table.path}/{FOLDER}/ledger"
    if local_form(location) is None:
        require_known_store(location)
    _require_spelling(table, misread_part(location))
    return delta_uri(location)


def _require_spelling(table: Table, refused: str | None) -> None:
    if refused is not None:
        raise InvalidArgumentError(
            f"{table.path}: no ledger can be kept in a folder with {refused!r} in its path, so its versions cannot be "
            "pinned; move the table to a folder without it"
        )


def _open(table: Table) -> DeltaTable | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    path = path_of(table)
    require_no_fork(table.path, "deltalake")
    options = delta_options(table.storage_options) or None
    with _naming_failures(table, reading=True):
        with contextlib.suppress(TableNotFoundError):
            return DeltaTable(path, storage_options=options)
        if not any(name.endswith(".json") for name in names_in(f"{path}/_delta_log", table.storage_options)):
            return None
        return DeltaTable(path, storage_options=options)  # made meanwhile, or damaged


def _create(table: Table, ledger: Ledger) -> bool:
    """Makes the ledger; returns False if another process has made it first."""
    from deltalake import write_deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError

    path, options = path_of(table), delta_options(table.storage_options) or None
    _require_spelling(table, unwritable_part(path))
    if local_form(path) is not None:
        with _naming_failures(table):  # the table's own folder is there, or the table is gone
            Path(path).parent.mkdir(exist_ok=True)
        _require_space(table)
    elif not has_conditional_writes(f"{table.path}/{FOLDER}/probe", table.storage_options):
        raise StoreError(
            f"{table.path}: its store has no conditional writes (a PUT with If-None-Match overwrote an object), so "
            "writers could undo each other's changes unseen. Use a store that has them, or a disk"
        )
    with _naming_failures(table):
        try:
            write_deltalake(
                path,
                _rows_of(ledger),
                configuration=_CONFIGURATION,
                storage_options=options,
                commit_properties=_one_attempt(),
            )
        except CommitFailedError:
            return False
        except DeltaError:
            if _open(table) is None:
                raise
            return False
    return True


def _swap(table: Table, found: DeltaTable, ledger: Ledger) -> bool:
    """Writes the version after the opened one; returns False if another writer has written it."""
    from deltalake import PostCommitHookProperties, write_deltalake
    from deltalake.exceptions import CommitFailedError

    _require_spelling(table, unwritable_part(path_of(table)))  # the folder may have been renamed
    _require_space(table)
    hooks = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=True)
    with _naming_failures(table):
        try:
            write_deltalake(
                found,
                _rows_of(ledger),
                mode="overwrite",
                commit_properties=_one_attempt(),
                post_commithook_properties=hooks,
            )
        except CommitFailedError:
            return False
    if found.version() % _TIDY_EVERY == 0:
        _tidy(found)
    return True


def _require_space(table: Table) -> None:
    """Raises before a write to a full disk, which ends the process in delta-rs (object_store 0.13)."""
    local = local_form(f"{table.path}/{FOLDER}")
    with _naming_failures(table):
        if local is not None and shutil.disk_usage(local).free < _FREE_BYTES:
            raise OSError(errno.ENOSPC, "No space left on device")


def _one_attempt() -> Any:
    from deltalake import CommitProperties

    # delta-rs would otherwise commit on top of another writer's version where the two do not conflict by its rules.
    return CommitProperties(max_commit_retries=0)


def _tidy(found: DeltaTable) -> None:
    """Removes data files of old versions of the ledger, and those of writers that were slower or died."""
    from deltalake.exceptions import DeltaError

    with contextlib.suppress(DeltaError, OSError):  # the next one does it
        found.vacuum(dry_run=False, enforce_retention_duration=False, full=True)


def _damaged(table: Table, error: object) -> LedgerError:
    location = f"{table.path}/{FOLDER}/ledger"
    return LedgerError(
        f"{location} is damaged ({str(error).splitlines()[0]}), so class numbers and protected versions are not known. "
        "Put it back from a copy. Or delete this folder: class numbers are then read from the rows, and pins are lost"
    )


@contextlib.contextmanager
def _naming_failures(table: Table, *, reading: bool = False) -> Iterator[None]:
    """Raises what the disk or store refuses as an error of ours."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except (StoreError, NoSpaceError, CommitFailedError):
        raise
    except (DeltaError, OSError) as error:
        if isinstance(error, OSError) and local_form(table.path) is None:
            raise store_error(table.path, error) from error
        if reading and isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            why = " ".join(_COLOURS.sub(" ", str(error)).split())
            raise StoreError(
                f"{table.path}: its ledger cannot be read now ({why}). Try again if the disk was away; else give this "
                "process the right to read, or more open files"
            ) from error
        if reading:
            raise _damaged(table, error) from error
        why = " ".join(str(error).split())
        if _OUT_OF_SPACE.search(why):
            raise NoSpaceError(
                f"{table.path}: no space is left on a disk, that of its ledger ({why}); free some, and try again"
            ) from error
        raise InvalidArgumentError(
            f"{table.path} cannot be written: {why}; its owner can give you the right to, or copy the table"
        ) from error


# --- the ledger as rows


def _rows_of(ledger: Ledger) -> pa.Table:
    import pyarrow as pa

    rows: list[tuple[str, str, Mapping[str, Any]]] = [("ledger", "format", {"format": _FORMAT})]
    rows += [("class", str(one.number), asdict(one)) for one in ledger.classes]
    rows += [("version", str(version), dict(counts)) for version, counts in ledger.versions.items()]
    rows += [("pin", one.name, asdict(one)) for one in ledger.pins]
    rows += [("use", one.run_id, asdict(one)) for one in ledger.uses]
    rows += [("vacuum", one.mark, asdict(one)) for one in (ledger.vacuum,) if one is not None]
    kinds, keys = ([row[i] for row in rows] for i in (0, 1))
    values = [json.dumps(row[2], default=_time_text, ensure_ascii=False) for row in rows]
    return pa.table({"kind": kinds, "key": keys, "value": values})


def _time_text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r} is not a value of a ledger")


def _ledger_of(table: Table, found: DeltaTable) -> Ledger:
    with _naming_failures(table, reading=True):
        rows = _read_rows(table, found)
    kinds: dict[str, list[tuple[str, Any]]] = {}
    try:
        for row in rows:
            kinds.setdefault(row["kind"], []).append((row["key"], json.loads(row["value"])))
        ((_, header),) = kinds["ledger"]
        if header["format"] != _FORMAT:
            raise LedgerError(
                f"{path_of(table)} has format {header['format']}, and this lakelens reads {_FORMAT}; install the "
                "version that wrote it, or a later one"
            )
        return Ledger(
            classes=tuple(sorted((_class_of(row) for _, row in kinds.get("class", [])), key=lambda one: one.number)),
            versions={
                version: {name: ClassRows(*pair) for name, pair in counts.items()}
                for version, counts in sorted((int(key), counts) for key, counts in kinds.get("version", []))
            },
            pins=tuple(Pin(row["name"], row["version"], _time(row["since"])) for _, row in kinds.get("pin", [])),
            uses=tuple(_use_of(row) for _, row in kinds.get("use", [])),
            vacuum=next((_vacuum_of(row) for _, row in kinds.get("vacuum", [])), None),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(table, error) from error


def _read_rows(table: Table, found: DeltaTable) -> list[dict[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, str]] = []
    for path in found.get_add_actions(flatten=True)["path"].to_pylist():
        # Not pq.read_table, whose threads abort a process that ends soon after delta-rs has written (pyarrow 14).
        content = read_bytes(f"{path_of(table)}/{path}", table.storage_options)
        rows += pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False).to_pylist()
    return rows


def _class_of(row: Mapping[str, Any]) -> LabelClass:
    begun = row.get("renaming")
    return LabelClass(row["number"], row["name"], tuple(row["former"]), None if begun is None else Renaming(*begun))


def _use_of(row: Mapping[str, Any]) -> Use:
    process = None if row["process"] is None else Process(**row["process"])
    since, renewed = _time(row["since"]), _time(row["renewed"])
    return Use(row["run_id"], row["version"], since, renewed, process, row["tracking_uri"])


def _vacuum_of(row: Mapping[str, Any]) -> Vacuum:
    return Vacuum(row["mark"], tuple(row["keeps"]), row["latest"], row["beat"], Process(**row["process"]))


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
