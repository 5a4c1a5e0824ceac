"""What a VACUUM takes, and what it may not take."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from snapshots import open_snapshot
from stored_rows import files_of
from tracked_runs import track
from version_tables import commit, images, set_configuration, three_versions, write

from lakelens import ImageTable
from lakelens.errors import (
    InvalidArgumentError,
    TableError,
    VersionFilesMissingError,
    VersionNotFoundError,
    VersionProtectedError,
    VersionUnreadableError,
)
from lakelens.etl.model.schema import TABLE_PROPERTIES
from lakelens.etl.versions import changes as versions
from lakelens.etl.versions import vacuum
from lakelens.etl.versions.vacuum import VacuumResult
from lakelens.ledger.protection import pins, unpin, vacuuming
from lakelens.table import Table

pytestmark = pytest.mark.unit

TEN_DAYS_S = 10 * 86_400


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return three_versions(tmp_path)


@pytest.fixture
def plain(table: Path) -> Path:
    """The same table at a path without a percent sign, for delta-rs's checkpoints."""
    return table.rename(table.with_name("plain"))


def vacuum_now(table: Path, **options: bool) -> VacuumResult:
    return ImageTable(None, table).vacuum(0, allow_short_retention=True, **options)


def pin_version(table: Path, name: str, version: int | None = None, **options: bool) -> int:
    return vacuum.pin_version(Table.of(table, version), name, **options)


def test_vacuum_refuses_to_take_files_of_a_pinned_or_used_version_and_says_which(table: Path) -> None:
    pin_version(table, "golden", 0)
    track(table, 1, "run-7")
    with pytest.raises(VersionProtectedError, match=r"version 0 \(pin golden\); version 1 \(run run-7\).*keep_prot"):
        vacuum_now(table)
    assert all(path.exists() for path in files_of(table, 1))


def test_vacuum_can_take_the_rest_and_leave_protected_versions_whole(table: Path) -> None:
    write(table, images(dog=["x"]), mode="overwrite")
    pin_version(table, "golden", 0)
    result = vacuum_now(table, keep_protected=True)
    assert result.kept == {0: ("pin golden",)}
    assert all(path.exists() for path in files_of(table, 0))
    assert not any(path.exists() for path in files_of(table, 2))
    assert versions.class_counts(open_snapshot(table, "golden")) == {"cat": 2, "dog": 1, "cow": 0}
    assert versions.class_counts(open_snapshot(table)) == {"cat": 0, "dog": 1, "cow": 0}


def test_a_dry_run_lists_what_would_go_and_takes_nothing(table: Path) -> None:
    pin_version(table, "latest-good")
    result = vacuum_now(table, dry_run=True)
    assert result.dry_run
    assert len(result.files) == 2
    assert all((table / path).exists() for path in result.files)
    assert set(vacuum_now(table).files) == set(result.files)
    assert not any((table / path).exists() for path in result.files)
    assert vacuum_now(table).files == ()
    assert pins(Table.of(table)) == {"latest-good": 2}


@pytest.mark.parametrize(
    ("hours", "words"), [(-1, "at least 0"), (1.5, "whole number"), (24, "below 168.*allow_short")]
)
def test_a_retention_is_long_unless_asked_for_on_purpose(table: Path, hours: int, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        ImageTable(None, table).vacuum(hours)


def test_without_a_retention_the_tables_own_counts(table: Path) -> None:
    assert ImageTable(None, table).vacuum().files == ()
    set_configuration(table, 0, delta__deletedFileRetentionDuration="interval 0 hours")
    assert len(ImageTable(None, table).vacuum().files) == 2


def test_what_a_killed_writer_left_goes_once_it_is_old_and_what_delta_hides_stays(tmp_path: Path) -> None:
    place = tmp_path / "50% é"
    rows = pa.table({"path": ["a"], "split": ["50% é/x"]})
    for mode in ("append", "overwrite"):
        write_deltalake(str(tmp_path / "plain"), rows, mode=mode, partition_by=["split"])
    (tmp_path / "plain").rename(place)
    folder = next(place.glob("split=*"))
    for name in ("orphan é %.parquet", ".hidden.parquet", "_temporary.parquet", "young.parquet"):
        (folder / name).write_bytes(b"x")
        if name != "young.parquet":
            os.utime(folder / name, (time.time() - TEN_DAYS_S,) * 2)
    (folder / ".orphan é %.parquet.crc").write_bytes(b"x")
    pin_version(place, "now")
    assert [Path(path).name for path in ImageTable(None, place).vacuum().files] == ["orphan é %.parquet"]
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".parquet") == []
    assert {path.name for path in folder.iterdir()} >= {".hidden.parquet", "_temporary.parquet", "young.parquet"}
    (old,) = files_of(place, 0)
    os.utime(old, (time.time() - TEN_DAYS_S,) * 2)  # written long ago, removed just now: a version within the retention
    assert ImageTable(None, place).vacuum().files == ()
    pin_version(place, "old", 0)
    with pytest.raises(VersionProtectedError, match="pin old"):
        vacuum_now(place)
    unpin(Table.of(place), "old")
    vacuum_now(place)
    assert [path.exists() for path in (old, *files_of(place))] == [False, True]


def test_a_pinned_version_that_the_log_no_longer_knows_is_told(plain: Path) -> None:
    track(plain, 0, "run-7")
    DeltaTable(plain).create_checkpoint()
    (plain / "_delta_log" / f"{0:020d}.json").unlink()
    assert ImageTable(None, plain).vacuum().unreadable == {0: ("run run-7",)}


@pytest.mark.parametrize("damage", ["cut short", "in the way"])
def test_a_protected_version_that_cannot_be_read_now_refuses_the_vacuum_and_loses_no_file(
    plain: Path, damage: str
) -> None:
    pin_version(plain, "golden", 1)
    files = files_of(plain, 1)
    DeltaTable(plain).create_checkpoint()
    entry = plain / "_delta_log" / f"{1:020d}.json"
    whole = entry.read_text()
    if damage == "cut short":
        entry.write_text(whole[:30])
    else:
        entry.unlink()
        entry.mkdir()
    for options in ({}, {"dry_run": True}, {"keep_protected": True}):
        with pytest.raises(
            VersionUnreadableError, match=r"version 1 is protected \(pin golden\) and cannot be opened.*nothing was rem"
        ):
            vacuum_now(plain, **options)
    assert all(path.exists() for path in files)
    unpin(Table.of(plain), "golden")
    assert len(vacuum_now(plain).files) == 2


def test_a_log_that_cannot_be_listed_is_not_taken_for_no_table(table: Path) -> None:
    loop = table / "_delta_log" / f"{1:020d}.json"
    loop.unlink()
    loop.symlink_to(loop)
    for act in (lambda: vacuum_now(table), lambda: open_snapshot(table, 0)):
        with pytest.raises(VersionUnreadableError, match="is there and cannot be read"):
            act()


def test_a_table_with_deletion_vectors_gives_its_pins_and_takes_them_away(plain: Path) -> None:
    pin_version(plain, "golden", 1)
    track(plain, 1, "run-7")
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    vector = {"storageType": "u", "pathOrInlineDv": "x" * 20, "offset": 1, "sizeInBytes": 34, "cardinality": 1}
    add = json.loads((plain / "_delta_log" / f"{2:020d}.json").read_text().splitlines()[-1])["add"]
    commit(
        plain,
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features},
        {"add": add | {"deletionVector": vector}},
    )
    opened = ImageTable(None, plain)
    with pytest.raises(VersionUnreadableError, match="a deletion vector cannot be read"):
        opened.snapshot()
    assert opened.pins() == {"golden": 1}
    opened.unpin("golden")
    assert (opened.pins(), opened.untrack("run-7")) == ({}, 1)
    assert opened.quarantine().count == 0


def test_a_pin_made_while_vacuum_works_waits_and_never_names_files_that_went(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[object] = []

    def pin() -> None:
        try:
            found.append(pin_version(table, "golden", 0))
        except VersionFilesMissingError as error:
            found.append(error)

    thread = threading.Thread(target=pin)
    with vacuuming(Table.of(table), 2):
        thread.start()
        thread.join(1.5)
        assert thread.is_alive()
        assert "waiting for a VACUUM of process" in caplog.text
        assert pin_version(table, "newest") == 2  # which VACUUM keeps
        for path in files_of(table, 0):
            path.unlink()
    thread.join(60)
    assert [type(entry) for entry in found] == [VersionFilesMissingError]
    assert pins(Table.of(table)) == {"newest": 2}


def test_a_pin_made_while_vacuum_looks_for_files_protects_its_version(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = vacuum._removable_files

    def pin_and_look(*args: Any) -> dict[str, str]:
        pin_version(table, "golden", 0)
        return look(*args)

    monkeypatch.setattr(vacuum, "_removable_files", pin_and_look)
    with pytest.raises(VersionProtectedError, match="pin golden"):
        vacuum_now(table)


def test_a_damaged_ledger_stops_vacuum(table: Path) -> None:
    pin_version(table, "golden", 0)
    (table / "_lakelens" / "ledger" / "_delta_log" / f"{0:020d}.json").write_text("{")
    with pytest.raises(TableError, match=r"_lakelens/ledger is damaged"):
        vacuum_now(table)
    assert all(path.exists() for path in files_of(table, 0))


def test_our_tables_keep_their_log_as_long_as_versions_are_to_be_read(tmp_path: Path) -> None:
    """Delta's own default lets a version of 31 days go unread, whatever is pinned."""
    for name, properties in (("ours", TABLE_PROPERTIES), ("theirs", {})):
        place = tmp_path / name
        DeltaTable.create(str(place), pa.schema([("path", pa.string())]), configuration=dict(properties))
        for _ in range(2):
            write_deltalake(str(place), pa.table({"path": ["a"]}), mode="append")
        for path in (place / "_delta_log").glob("*.json"):
            os.utime(path, (time.time() - 40 * TEN_DAYS_S,) * 2)
        DeltaTable(str(place)).create_checkpoint()
        DeltaTable(str(place)).cleanup_metadata()
    assert open_snapshot(tmp_path / "ours", 1).rows == 1
    with pytest.raises(VersionNotFoundError, match="can no longer be rebuilt"):
        open_snapshot(tmp_path / "theirs", 1)
