"""Names of versions and notes of who has read them, beside tables on disks and in S3."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from full_disk import run_on_small_disk
from s3_server import BUCKET, MISSING, S3Server, s3_server
from tracked_runs import tracked
from version_tables import three_versions

from lakelens import ImageTable
from lakelens.errors import (
    InvalidArgumentError,
    TableError,
    VersionFilesMissingError,
    VersionNotFoundError,
    VersionProtectedError,
)
from lakelens.etl.pins import notes, pins
from lakelens.tracking.runs import open_client, tracked_run

pytestmark = pytest.mark.system


@dataclass(frozen=True)
class Table:
    """Where a table is, and how to get there."""

    location: str
    storage_options: dict[str, str] = field(default_factory=dict)

    def pin(self, name: str, version: int, *, replace: bool = False) -> None:
        pins.pin(self.location, name, version, replace=replace, storage_options=self.storage_options)

    def unpin(self, name: str) -> None:
        pins.unpin(self.location, name, self.storage_options)

    def pins(self) -> dict[str, int]:
        return pins.pins(self.location, self.storage_options)

    def version_of(self, name: str) -> int | None:
        return pins.version_of_pin(self.location, name, self.storage_options)

    def track(self, version: int, run: str) -> None:
        pins.track(self.location, version, run, self.storage_options)

    def untrack(self, run: str) -> int:
        return pins.untrack(self.location, run, self.storage_options)

    def tracked(self) -> dict[int, list[str]]:
        return tracked(self.location, self.storage_options)

    def tracking(self, version: int, run: str, kept_as: str | None = None):
        options = self.storage_options
        return pins.tracking(self.location, version, run, kept_as=kept_as, storage_options=options)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    if MISSING:
        pytest.skip(f"{', '.join(MISSING)} not installed: pip install 'lakelens[dev]'")
    with s3_server() as server:
        yield server


@pytest.fixture(params=["disk", "S3"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    if request.param == "disk":
        return Table(str(tmp_path))
    server = request.getfixturevalue("server")
    return Table(f"s3a://{BUCKET}/tables/{tmp_path.name}", server.storage_options)


def test_a_pin_names_a_version_until_it_is_taken_away(table):
    assert table.pins() == {}
    table.pin("before-relabel", 3)
    table.pin("v1.0", 0)
    assert table.pins() == {"before-relabel": 3, "v1.0": 0}
    assert table.version_of("v1.0") == 0
    assert table.version_of("nothing") is None
    table.unpin("v1.0")
    assert table.pins() == {"before-relabel": 3}


def test_a_pin_does_not_move_unless_asked(table):
    table.pin("gold", 1)
    table.pin("gold", 1)
    with pytest.raises(InvalidArgumentError, match=r"'gold'.*version 1.*unpin"):
        table.pin("gold", 2)
    table.pin("gold", 2, replace=True)
    assert table.pins() == {"gold": 2}


def test_unpinning_what_is_not_pinned_names_what_is(table):
    table.pin("gold", 1)
    with pytest.raises(VersionNotFoundError, match=r"'silver'.*gold"):
        table.unpin("silver")


@pytest.mark.parametrize(
    "name", ["", "1", "12a", "2026-11-20", "latest", "a/b", "../x", "a b", ".x", "a" * 101, "gold\n", None, 3]
)
def test_a_name_that_could_be_something_else_is_refused(tmp_path, name):
    with pytest.raises(InvalidArgumentError, match="pin's name"):
        Table(str(tmp_path)).pin(name, 1)
    assert not list(tmp_path.rglob("*.json"))


def test_tracked_versions_know_their_runs(table):
    table.track(1, "run/a")
    table.track(1, "run/a")
    table.track(1, "b")
    table.track(2, "b")
    assert table.tracked() == {1: ["b", "run/a"], 2: ["b"]}
    assert table.untrack("b") == 2
    assert table.tracked() == {1: ["run/a"]}
    with pytest.raises(VersionNotFoundError, match=r"run 'b'; its runs: run/a"):
        table.untrack("b")


def test_runs_that_began_long_ago_are_forgotten_together_unless_they_are_at_work(tmp_path):
    table = Table(str(tmp_path))
    now = datetime.now(timezone.utc)
    for name, age in (("old", timedelta(days=91)), ("young", timedelta(days=89))):
        pins.track(table.location, 0, name, since=now - age)
    pins.track(table.location, 1, "at work", since=now - timedelta(days=200), while_running=True)
    assert [note.name for note in pins.tracked_notes(table.location) if note.since and note.since < now] == [
        "old",
        "young",
        "at work",
    ]
    assert pins.untrack_older(table.location, timedelta(days=90)) == 1
    assert table.tracked() == {0: ["young"], 1: ["at work"]}
    with pytest.raises(InvalidArgumentError, match="above 0"):
        pins.untrack_older(table.location, timedelta(0))


def test_a_run_that_mlflow_has_deleted_protects_nothing(tmp_path, caplog):
    table, store = Table(str(tmp_path)), f"sqlite:///{tmp_path}/mlflow.db"
    runs = []
    for _ in range(2):
        with (
            tracked_run(store, "pins") as run,
            pins.tracking(table.location, 0, run.run_id, tracking_uri=store),
        ):
            assert run.run_id in table.tracked()[0]
        runs.append(run.run_id)
    pins.track(table.location, 1, "of another store", tracking_uri=store)
    pins.track(table.location, 2, "out of reach", tracking_uri=f"sqlite:///{tmp_path}/another/mlflow.db")
    assert table.tracked() == {0: sorted(runs), 1: ["of another store"], 2: ["out of reach"]}
    assert "another/mlflow.db" in caplog.text
    assert not (tmp_path / "another").exists()
    open_client(store).delete_run(runs[0])
    assert table.tracked() == {0: [runs[1]], 1: ["of another store"], 2: ["out of reach"]}


def test_a_note_holds_no_password_of_a_store(tmp_path, monkeypatch):
    pins.track(str(tmp_path), 0, "run", tracking_uri="postgresql://me:secret@host/mlflow")
    (file,) = (tmp_path / "_lakelens" / "tracked").glob("*.json")
    assert json.loads(file.read_text())["tracking_uri"] == "postgresql://me:***@host/mlflow"


def test_a_version_is_tracked_while_it_is_read_and_after_that_unless_reading_failed(table):
    with table.tracking(0, "run"):
        assert table.tracked() == {0: ["run"]}
    with contextlib.suppress(ValueError), table.tracking(1, "another"):
        assert table.tracked() == {0: ["run"], 1: ["another"]}
        raise ValueError("diverged")
    assert table.tracked() == {0: ["run"]}
    for _ in range(2):
        with table.tracking(2, "call", kept_as="model"):
            assert table.tracked()[2] in (["call"], ["model"])
    assert table.tracked() == {0: ["run"], 2: ["model"]}


@pytest.mark.parametrize("kept_as", [None, "model"])
def test_the_note_of_a_run_that_never_finished_goes_with_its_process(tmp_path, kept_as):
    table = Table(str(tmp_path))

    def read_until_killed(sender):
        with table.tracking(0, "call", kept_as=kept_as):
            sender.send(None)
            signal.pause()

    receiver, sender = multiprocessing.Pipe(duplex=False)
    reader = multiprocessing.get_context("fork").Process(target=read_until_killed, args=(sender,))
    reader.start()
    try:
        assert receiver.poll(60)
        assert table.tracked() == {0: ["call"]}
    finally:
        reader.kill()
    reader.join()
    assert table.tracked() == {}
    with table.tracking(1, "another", kept_as=kept_as):
        assert table.tracked() == {1: ["another"]}


@pytest.mark.parametrize(
    ("ends", "is_resumable", "is_protected"),
    [("raises", True, True), ("raises", False, False), ("is killed", False, True)],
)
def test_a_run_that_can_be_resumed_protects_its_version_until_it_is_deleted(tmp_path, ends, is_resumable, is_protected):
    table, store = Table(str(tmp_path)), f"sqlite:///{tmp_path}/mlflow.db"
    with tracked_run(store, "pins") as run:
        pass

    def read():
        with pins.tracking(table.location, 0, run.run_id, tracking_uri=store, resumable=lambda: is_resumable):
            if ends == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt

    reader = multiprocessing.get_context("fork").Process(target=read)
    reader.start()
    reader.join()
    assert table.tracked() == ({0: [run.run_id]} if is_protected else {})
    open_client(store).delete_run(run.run_id)
    assert table.tracked() == {}


@pytest.mark.parametrize("kept_as", [None, "model"])
def test_the_note_of_a_process_of_another_machine_goes_after_a_day_without_renewal(tmp_path, monkeypatch, kept_as):
    table = Table(str(tmp_path))
    monkeypatch.setattr(pins, "_RENEW_S", 0.0)
    with table.tracking(0, "call", kept_as=kept_as) as renew:
        (file,) = (tmp_path / "_lakelens" / "tracked").glob("*.json")
        record = json.loads(file.read_text())
        record["process"]["machine"] = "another"
        file.write_text(json.dumps(record))
        assert table.tracked() == {0: ["call"]}
        long_ago = datetime.now(timezone.utc) - timedelta(hours=25)
        old = {"created": long_ago.isoformat(), "renewed": long_ago.isoformat()}
        file.write_text(json.dumps(record | old))
        renew()
        assert table.tracked() == {0: ["call"]}
        file.write_text(json.dumps(record | old))
        assert table.tracked() == {}


def test_pins_at_once_are_all_kept_and_readers_never_see_half_a_file(tmp_path):
    table, seen = Table(str(tmp_path)), []
    stop = threading.Event()

    def read():
        while not stop.is_set():
            seen.append(table.pins())

    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=table.pin, args=(f"p{n}", n)) for n in range(30)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert table.pins() == {f"p{n}": n for n in range(30)}
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json"]


def test_a_pin_is_a_plain_json_file_beside_the_data(tmp_path):
    Table(str(tmp_path)).pin("gold", 4)
    record = json.loads((tmp_path / "_lakelens" / "pins" / "gold.json").read_text())
    assert (record["name"], record["version"]) == ("gold", 4)


@pytest.fixture
def unreachable(server, monkeypatch) -> Table:
    """A table in a store that does not answer, and is not asked again."""
    import s3fs

    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    return Table(f"s3a://{BUCKET}/tables/far", {**server.storage_options, "aws_endpoint_url": "http://127.0.0.1:9"})


@pytest.mark.parametrize("kept_as", [None, "model"])
def test_a_table_that_cannot_be_written_is_read_all_the_same_with_a_warning(unreachable, caplog, kept_as):
    with unreachable.tracking(3, "run", kept_as):
        pass
    assert "VACUUM may remove files of version 3 while they are read" in caplog.text


def test_a_table_in_a_store_that_only_spark_knows_is_read_all_the_same_and_has_no_pins(caplog):
    table = Table("hdfs://namenode/table")
    with table.tracking(3, "run", kept_as="model"):
        pass
    assert "hdfs://namenode/table cannot be written" in caplog.text
    with pytest.raises(InvalidArgumentError, match="no store of scheme 'hdfs'"):
        table.pins()


def test_the_error_of_a_reader_is_told_where_its_note_cannot_be_taken_back(table, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "read-only")

    def read() -> None:
        with table.tracking(0, "run"):
            monkeypatch.setattr(notes, "remove_file", refuse)
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        read()


def test_protection_that_cannot_be_read_is_an_error_and_not_none(unreachable):
    with pytest.raises(TableError, match=r"tables/far/_lakelens/pins cannot be read.*storage_options"):
        unreachable.pins()


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


FULL_DISK = """
import pyarrow as pa
from deltalake import write_deltalake
from lakelens import ImageTable
write_deltalake(str(disk / "t"), pa.table({"path": ["a"]}))
table = ImageTable(None, disk / "t")
empty = fill()
full = told(lambda: table.pin("golden"))
pins = table.pins()
empty()
table.pin("golden")
print(json.dumps([full, pins, table.pins()]))
"""


def test_a_pin_on_a_full_disk_says_so_and_leaves_nothing_behind(tmp_path):
    (kind, message), pins, after = run_on_small_disk(tmp_path / "disk", FULL_DISK)
    assert kind == "NoSpaceError"
    assert f"{tmp_path}/disk/t: its disk has no space left" in message
    assert (pins, after) == ({}, {"golden": 0})
