"""Pins and uses of versions, and how a VACUUM keeps away from them, on disks and in S3."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from mlflow_stores import put_store
from s3_server import BUCKET
from tracked_runs import track, tracked
from version_tables import three_versions

from lakelens import ImageTable
from lakelens.errors import (
    InvalidArgumentError,
    StoreError,
    TableConflictError,
    VersionFilesMissingError,
    VersionNotFoundError,
    VersionProtectedError,
)
from lakelens.ledger import protection
from lakelens.ledger.ledger import Vacuum
from lakelens.ledger.protection import untrack, untrack_older, using, vacuuming
from lakelens.ledger.store import change, read
from lakelens.liveness import Process
from lakelens.table import Table
from lakelens.tracking.runs import open_client, tracked_run

pytestmark = pytest.mark.system


@pytest.fixture
def table(tmp_path) -> Table:
    return Table.of(tmp_path)


def pin(table: Table, name: str, version: int, **options: bool) -> None:
    protection.set_pin(table, name, version, lambda: None, **options)


def test_a_pin_names_a_version_until_it_is_removed_and_moves_only_if_asked(table):
    assert protection.pins(table) == {}
    pin(table, "before-relabel", 3)
    pin(table, "v1.0", 0)
    pin(table, "v1.0", 0)
    with pytest.raises(InvalidArgumentError, match=r"'v1.0'.*version 0.*unpin"):
        pin(table, "v1.0", 2)
    pin(table, "v1.0", 2, replace=True)
    assert protection.pins(table) == {"before-relabel": 3, "v1.0": 2}
    assert (protection.pinned_version(table, "v1.0"), protection.pinned_version(table, "nothing")) == (2, None)
    protection.unpin(table, "v1.0")
    with pytest.raises(VersionNotFoundError, match=r"'v1.0'.*its pins: before-relabel"):
        protection.unpin(table, "v1.0")


@pytest.mark.parametrize(
    "name", ["", "1", "12a", "2026-11-20", "latest", "a/b", "../x", "a b", ".x", "a" * 101, "gold\n", None, 3]
)
def test_a_name_that_could_be_something_else_is_refused(table, name):
    with pytest.raises(InvalidArgumentError, match="pin's name"):
        pin(table, name, 1)
    assert not list(Path(table.path).iterdir())


def test_uses_know_their_runs_and_are_removed_by_run_or_age_unless_they_are_at_work(table):
    now = datetime.now(timezone.utc)
    for version, run, age in ((1, "run/a", 0), (1, "b", 0), (2, "b", 0), (0, "old", 91), (0, "young", 89)):
        track(table.path, version, run, now - timedelta(days=age))
    assert tracked(table.path) == {0: ["old", "young"], 1: ["b", "run/a"], 2: ["b"]}
    assert untrack(table, "b") == 2
    with pytest.raises(VersionNotFoundError, match=r"run 'b'; its runs: old, run/a, young"):
        untrack(table, "b")
    with using(table, 3, "at work"):
        change(table, lambda ledger: ledger.with_use(replace(ledger.uses[-1], since=now - timedelta(days=200))))
        assert untrack_older(table, timedelta(days=90)) == 1
        assert tracked(table.path) == {0: ["young"], 1: ["run/a"], 3: ["at work"]}
    with pytest.raises(InvalidArgumentError, match="above 0"):
        untrack_older(table, timedelta(0))


def test_a_run_that_mlflow_has_deleted_protects_nothing(table, tmp_path, caplog):
    store, runs = put_store(tmp_path), []
    for _ in range(2):
        with tracked_run(store, "pins") as run, using(table, 0, run.run_id, tracking_uri=store):
            assert run.run_id in tracked(table.path)[0]
        runs.append(run.run_id)
    with using(table, 1, "another store's", tracking_uri=store):
        pass
    with using(table, 2, "out of reach", tracking_uri=f"sqlite:///{tmp_path}/another/mlflow.db"):
        pass
    assert tracked(table.path) == {0: sorted(runs), 1: ["another store's"], 2: ["out of reach"]}
    assert "another/mlflow.db" in caplog.text
    assert not (tmp_path / "another").exists()
    open_client(store).delete_run(runs[0])
    assert tracked(table.path) == {0: [runs[1]], 1: ["another store's"], 2: ["out of reach"]}


def test_a_version_is_protected_while_it_is_read_and_after_that_unless_reading_failed(table):
    with using(table, 0, "run", tracking_uri="postgresql://me:secret@host/mlflow"):
        assert [use.tracking_uri for use in read(table).uses] == ["postgresql://me:***@host/mlflow"]
    untrack(table, "run")
    with using(table, 0, "run"):
        assert tracked(table.path) == {0: ["run"]}
    with contextlib.suppress(ValueError), using(table, 1, "another"):
        assert tracked(table.path) == {0: ["run"], 1: ["another"]}
        raise ValueError("diverged")
    assert tracked(table.path) == {0: ["run"]}
    for _ in range(2):
        with using(table, 2, "call", kept_as="model"):
            assert tracked(table.path)[2] in (["call"], ["model"])
    assert tracked(table.path) == {0: ["run"], 2: ["model"]}


KILLED = """
import os, signal, sys
from lakelens.ledger.protection import using
from lakelens.table import Table
table, run, store = Table.of(sys.argv[1]), *sys.argv[2:]
with using(table, 0, run, tracking_uri=store), using(table, 0, "without MLflow"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("ends", "is_resumable", "is_protected"),
    [("raises", True, True), ("raises", False, False), ("is killed", False, True)],
)
def test_a_run_that_can_be_resumed_protects_its_version_until_it_is_deleted(
    table, tmp_path, ends, is_resumable, is_protected
):
    store = put_store(tmp_path)
    with tracked_run(store, "pins") as run:
        pass
    if ends == "is killed":
        subprocess.run([sys.executable, "-c", KILLED, table.path, run.run_id, store], check=False)
    else:
        with (
            contextlib.suppress(KeyboardInterrupt),
            using(table, 0, run.run_id, tracking_uri=store, resumable=lambda: is_resumable),
        ):
            raise KeyboardInterrupt
    assert tracked(table.path) == ({0: [run.run_id]} if is_protected else {})
    open_client(store).delete_run(run.run_id)
    assert tracked(table.path) == {}


def test_the_use_of_a_process_that_died_ends_with_it_at_once_here_and_after_a_day_elsewhere(table, monkeypatch):
    died = replace(Process.this(), pid=2**22 + 1)
    with using(table, 0, "call", kept_as="model") as renew:
        (use,) = read(table).uses
        change(table, lambda ledger: ledger.with_use(replace(use, process=died)))
        assert tracked(table.path) == {}
        away, now = replace(died, machine="another"), datetime.now(timezone.utc)
        change(table, lambda ledger: ledger.with_use(replace(use, process=away)))
        assert tracked(table.path) == {0: ["call"]}
        silent = replace(use, process=away, renewed=now - timedelta(hours=25))
        change(table, lambda ledger: ledger.with_use(silent))
        monkeypatch.setattr(protection, "_RENEW_S", 0.0)
        renew()
        assert tracked(table.path) == {0: ["call"]}
        change(table, lambda ledger: ledger.with_use(silent))
        assert tracked(table.path) == {}


def test_a_table_that_cannot_be_written_is_read_all_the_same_with_a_warning(server, caplog):
    options = {**server.storage_options, "aws_endpoint_url": "http://127.0.0.1:9", "max_retries": "0"}
    unreachable = Table.of(f"s3a://{BUCKET}/tables/far", storage_options=options)
    hdfs = Table.of("hdfs://namenode/table")
    for table, kept_as in ((unreachable, None), (hdfs, "model")):
        with using(table, 3, "run", kept_as=kept_as):
            pass
    assert "tables/far cannot be written" in caplog.text
    assert "VACUUM may remove files of version 3 while they are read" in caplog.text
    assert "hdfs://namenode/table cannot be written" in caplog.text
    with pytest.raises(InvalidArgumentError, match="unsupported scheme 'hdfs'"):
        protection.pins(hdfs)
    with pytest.raises(StoreError, match="tables/far cannot be reached"):
        protection.pins(unreachable)


def test_the_error_of_a_reader_is_raised_even_if_its_use_cannot_be_removed(table):
    def fail() -> None:
        with using(table, 0, "run"):
            (Path(table.path) / "_lakelens").rename(Path(table.path) / "away")
            (Path(table.path) / "_lakelens").write_text("in the way")
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        fail()


def test_vacuum_in_a_bucket_spares_a_pinned_version_until_it_is_unpinned(server, tmp_path):
    location = server.upload(three_versions(tmp_path), "tables/versions")
    table = ImageTable(None, location, storage_options=server.storage_options)
    assert table.pin("golden", 1) == 1
    with pytest.raises(VersionProtectedError, match=r"version 1 \(pin golden\)"):
        table.vacuum(0, allow_short_retention=True)
    assert table.class_counts("golden") == table.class_counts(1)
    table.unpin("golden")
    assert table.vacuum(0, allow_short_retention=True).files
    with pytest.raises(VersionFilesMissingError):
        table.pin("late", 1)
    assert table.pins() == {}


def test_a_vacuum_that_was_killed_delays_nobody_here_and_as_long_as_it_is_silent_elsewhere(table, monkeypatch):
    died = replace(Process.this(), pid=2**22 + 1)
    change(table, lambda ledger: replace(ledger, vacuum=Vacuum("v", (), 5, 0, died)))
    pin(table, "here", 1)
    assert read(table).vacuum is None
    monkeypatch.setattr(protection, "DEAD_S", 2.0)
    monkeypatch.setattr(protection, "_POLL_S", 0.05)
    away = Vacuum("v", (), 5, 0, replace(died, machine="another"))
    change(table, lambda ledger: replace(ledger, vacuum=away))
    waiting = threading.Thread(target=pin, args=(table, "elsewhere", 2))
    waiting.start()
    for beat in range(1, 6):  # it lives as long as its beat grows
        time.sleep(0.5)
        change(table, lambda ledger, beat=beat: replace(ledger, vacuum=replace(away, beat=beat)))
    assert "elsewhere" not in protection.pins(table)
    waiting.join(60)
    assert protection.pins(table) == {"elsewhere": 2, "here": 1}


def test_a_vacuum_that_was_taken_for_dead_removes_nothing_more(table, monkeypatch):
    monkeypatch.setattr(protection, "_RENEW_LEASE_S", 0.0)
    with vacuuming(table, 5) as (_, require):
        require()
        assert read(table).vacuum.beat == 1
        change(table, lambda ledger: replace(ledger, vacuum=None))
        with pytest.raises(TableConflictError, match="took it for dead"):
            require()


def test_a_vacuum_that_does_not_end_is_an_error_in_the_end(table, monkeypatch):
    monkeypatch.setattr(protection, "MOST_WAIT_S", 0.0)
    with (
        vacuuming(table, 5),
        pytest.raises(TableConflictError, match=r"a VACUUM of process \d+ on .* is still at work"),
    ):
        pin(table, "p", 1)
