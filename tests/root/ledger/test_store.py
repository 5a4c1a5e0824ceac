"""Where the ledger is kept: compare-and-swap on disks and in S3, damage, refusals, and what it leaves behind."""

from __future__ import annotations

import http.client
import http.server
import multiprocessing
import shutil
import threading
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from full_disk import run_on_small_disk
from s3_server import BUCKET

from lakelens.errors import InvalidArgumentError, LedgerError, StoreError, TableConflictError
from lakelens.ledger import store
from lakelens.ledger.ledger import Ledger, Pin, Use, Vacuum
from lakelens.ledger.protection import using
from lakelens.liveness import Process
from lakelens.retries import Retries
from lakelens.table import Table

pytestmark = pytest.mark.system

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


@pytest.fixture(params=["disk", "S3"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    if request.param == "disk":
        (tmp_path / "a table, 100%").mkdir()
        return Table.of(tmp_path / "a table, 100%")
    server = request.getfixturevalue("server")
    return Table.of(f"s3a://{BUCKET}/ledgers/{tmp_path.name}", storage_options=server.storage_options)


def test_a_ledger_is_read_as_it_was_written(table):
    assert store.read(table) == Ledger()
    whole = Ledger().reserved(["cat", "dög", "key"]).renamed("cat", "lion").recorded(3, {"lion": 2, "(no class)": 1})
    whole = whole.begun("key", "clé", 3)
    whole = whole.with_pin(Pin("gold", 3, NOW)).with_use(Use("run/7", 2, NOW, NOW, Process.this(), "file:///m"))
    whole = replace(whole, vacuum=Vacuum("v", (1, 2), 9, 7, Process.this()))
    assert store.change(table, lambda _: whole) == whole
    assert store.change(table, lambda ledger: ledger) == store.read(table) == whole
    assert store._open(table).version() == 0  # what changes nothing writes nothing


def _reserve(table: Table, names: list[str], started) -> None:
    started.wait()
    for name in names:
        store.change(table, lambda ledger, name=name: ledger.reserved([name]))


def test_processes_that_reserve_at_once_lose_nothing_and_share_no_number(table):
    # Neither has the table a ledger before: two first ingests.
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    names = [[f"{writer}-{number}" for number in range(3)] for writer in range(3)]
    writers = [context.Process(target=_reserve, args=(table, mine, started)) for mine in names]
    for writer in writers:
        writer.start()
    started.set()
    for writer in writers:
        writer.join(120)
    ledger = store.read(table)
    assert [one.number for one in ledger.classes] == list(range(9))
    assert set(ledger.labels) == {name for mine in names for name in mine}


def test_a_slower_writer_applies_its_change_to_what_the_faster_one_wrote(table):
    seen = []

    def reserve(ledger: Ledger) -> Ledger:
        seen.append(ledger.labels)
        if len(seen) == 1:
            store.change(table, lambda other: other.reserved(["faster"]))
        return ledger.reserved(["slower"])

    assert store.change(table, reserve).labels == {"faster": 0, "slower": 1}
    assert seen == [{}, {"faster": 0}]


def test_others_who_are_always_faster_are_an_error_that_says_so(tmp_path, monkeypatch):
    table = Table.of(tmp_path)
    store.change(table, lambda ledger: ledger.reserved(["first"]))
    monkeypatch.setattr(store, "_RETRIES", Retries(4, 0.01, 0.02))

    def reserve(ledger: Ledger) -> Ledger:
        assert store._swap(table, store._open(table), ledger.reserved([f"other {len(ledger.classes)}"]))
        return ledger.reserved(["mine"])

    with pytest.raises(TableConflictError, match="kept changing its ledger"):
        store.change(table, reserve)
    assert "mine" not in store.read(table).labels


def test_a_ledger_stays_small_after_many_changes(tmp_path, monkeypatch):
    table, folder = Table.of(tmp_path), tmp_path / "_lakelens" / "ledger"
    now = {name: text.replace("1 hours", "0 hours") for name, text in store._CONFIGURATION.items()}
    monkeypatch.setattr(store, "_CONFIGURATION", {**now, "delta.checkpointInterval": "10"})
    monkeypatch.setattr(store, "_TIDY_EVERY", 10)
    for number in range(35):
        store.change(table, lambda ledger, number=number: ledger.with_pin(Pin("p", number, NOW)))
    assert len(list((folder / "_delta_log").iterdir())) < 20
    assert len(list(folder.glob("*.parquet"))) < 10
    assert store.read(table).version_of("p") == 34


@pytest.mark.parametrize("damage", ["commit", "rows", "newer"])
def test_a_damaged_ledger_is_refused_with_the_way_out(tmp_path, damage):
    table, folder = Table.of(tmp_path), tmp_path / "_lakelens" / "ledger"
    store.change(table, lambda ledger: ledger.reserved(["cat"]))
    if damage == "commit":
        (folder / "_delta_log" / f"{1:020d}.json").write_text("{")
    elif damage == "rows":
        for path in folder.glob("*.parquet"):
            path.unlink()
    else:
        rows = pa.Table.from_pylist([{**store._rows_of(Ledger()).to_pylist()[0], "value": '{"format": 2}'}])
        write_deltalake(store._open(table), rows, mode="overwrite")
    words = r"format 2.*install" if damage == "newer" else r"is damaged.*delete this folder"
    for use in (lambda: store.read(table), lambda: store.change(table, lambda ledger: ledger.reserved(["dog"]))):
        with pytest.raises(LedgerError, match=words):
            use()
    shutil.rmtree(folder)
    assert store.read(table) == Ledger()


def test_a_ledger_that_a_disk_does_not_give_out_now_is_not_called_damaged(tmp_path):
    table, commit = Table.of(tmp_path), tmp_path / "_lakelens" / "ledger" / "_delta_log" / f"{0:020d}.json"
    store.change(table, lambda ledger: ledger.reserved(["cat"]))
    away = commit.rename(tmp_path / "away.json")
    commit.symlink_to(commit)  # an OSError, for root as well
    with pytest.raises(StoreError, match=r"ledger cannot be read now \(.*os error"):
        store.read(table)
    with using(table, 0, "run"):  # a warning only
        pass
    commit.unlink()
    away.rename(commit)
    assert store.read(table).labels == {"cat": 0}


def test_a_place_that_can_have_no_ledger_is_refused_by_name(tmp_path, server):
    for place, words in (
        (tmp_path / "a%20b", "'%20' in its path"),
        (tmp_path / "photos [2]" / "t", r"'\[' in its path"),
        (tmp_path / "a^b" / "t", r"'\^' in its path"),
        (tmp_path / "a|b", r"'\|' in its path"),
        (tmp_path / "a\\b" / "t", "in its path"),
        (tmp_path / "a\tb", r"in its path"),
        ("hdfs://namenode/table", "unsupported scheme 'hdfs'"),
        ("/proc/table", "/proc/table cannot be written"),
    ):
        table = Table.of(place)
        with pytest.raises(InvalidArgumentError, match=words):
            store.change(table, lambda ledger: ledger.reserved(["cat"]))
    away = {**server.storage_options, "aws_endpoint_url": "http://127.0.0.1:9", "max_retries": "0"}
    with pytest.raises(StoreError, match="cannot be reached"):
        store.read(Table.of(f"s3://{BUCKET}/t", storage_options=away))


class _Unconditional(http.server.BaseHTTPRequestHandler):
    """Passes requests on to an S3 server, and drops the condition of a PUT as older stores do."""

    endpoint = ""

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: text for name, text in self.headers.items() if name.lower() != "if-none-match"}
        client = http.client.HTTPConnection(self.endpoint.removeprefix("http://"))
        client.request(self.command, self.path, body, headers)
        answer = client.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        kept = {name: text for name, text in answer.getheaders() if name.lower() not in ("transfer-encoding", "date")}
        for name, text in {**kept, "Content-Length": kept.get("Content-Length", str(len(content)))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass_on

    def log_message(self, *_: object) -> None:
        pass


def test_a_store_without_conditional_writes_is_refused_by_name(server):
    _Unconditional.endpoint = server.endpoint
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Unconditional) as proxy:
        threading.Thread(target=proxy.serve_forever).start()
        try:
            options = {**server.storage_options, "aws_endpoint_url": f"http://127.0.0.1:{proxy.server_port}"}
            table = Table.of(f"s3://{BUCKET}/ledgers/unsafe", storage_options=options)
            with pytest.raises(StoreError, match="no conditional writes"):
                store.change(table, lambda ledger: ledger.reserved(["cat"]))
        finally:
            proxy.shutdown()


FULL_DISK = """
from lakelens.ledger import store
from lakelens.retries import Retries
from lakelens.table import Table
table = Table.of(disk / "t")
(disk / "t").mkdir()
empty = fill()
full = told(lambda: store.change(table, lambda ledger: ledger.reserved(["cat"])))
before = store.read(table)
empty()
store.change(table, lambda ledger: ledger.reserved(["cat"]))
print(json.dumps([full, before.labels, store.read(table).labels]))
"""


def test_a_full_disk_is_an_error_that_says_so_and_the_next_change_succeeds(tmp_path):
    (kind, message), before, after = run_on_small_disk(tmp_path / "disk", FULL_DISK)
    assert kind == "NoSpaceError"
    assert f"{tmp_path}/disk/t: no space is left on a disk, that of its ledger" in message
    assert (before, after) == ({}, {"cat": 0})
