"""The lock between pins and VACUUMs where a table lies in an object store: markers, on a real S3 server."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from s3_server import BUCKET, MISSING, S3Server, s3_server
from volumes import make_volume

from lakelens.errors import TableConflictError
from lakelens.etl.pins import table_lock as module
from lakelens.etl.pins.table_lock import table_lock
from lakelens.stores.data_files import names_in, write_bytes

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install 'lakelens[dev]'"),
]

# A process that holds the lock until it is killed.
HOLDER = """
import json, sys, time
from lakelens.etl.pins.table_lock import table_lock
with table_lock(sys.argv[1], "vacuum", json.loads(sys.argv[2])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def lock(server, monkeypatch, request):
    """Makes locks of a table of its own whose holders count as dead after two seconds."""
    monkeypatch.setattr(module, "DEAD_S", 2.0)
    monkeypatch.setattr(module, "_RENEW_S", 0.4)
    monkeypatch.setattr(module, "_POLL_S", 0.05)
    folder = f"s3a://{BUCKET}/{request.node.name}/_lakelens"

    def make(purpose: str):
        return table_lock(folder, purpose, server.storage_options)

    make.folder = folder
    yield make
    assert names_in(f"{folder}/locks", server.storage_options) == set()


def require_together(lock) -> None:
    all_inside = threading.Barrier(3, timeout=60)

    def read() -> None:
        with lock("read"):
            all_inside.wait()

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert not all_inside.broken


def require_alone(lock) -> None:
    require_together(lock)
    inside, wrong = [], []
    change = threading.Lock()

    def hold(purpose: str) -> None:
        for _ in range(3):
            with lock(purpose):
                with change:
                    inside.append(purpose)
                    wrong.extend(inside if len(inside) > 1 and set(inside) != {"read"} else [])
                time.sleep(0.05)
                with change:
                    inside.remove(purpose)

    threads = [threading.Thread(target=hold, args=(name,)) for name in ("vacuum", "pin", "read", "read", "read")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_vacuums_and_pins_are_alone_and_readers_together(lock, monkeypatch):
    monkeypatch.setattr(module, "DEAD_S", 60.0)  # nobody dies here, however slow the machine
    require_alone(lock)


@pytest.mark.parametrize("locks", ["flock", "byte ranges"])
def test_the_kernels_lock_holds_on_a_disk_and_where_nfs_makes_it_of_byte_ranges(tmp_path, monkeypatch, locks):
    if locks == "byte ranges":  # which the kernel grants for reading only on a file that is open for reading
        monkeypatch.setattr(module.fcntl, "flock", fcntl.lockf)
        with table_lock(str(tmp_path), "read"):
            pass
    else:
        require_alone(lambda purpose: table_lock(str(tmp_path), purpose))
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_file_system_without_locks_is_said_and_gets_the_markers(tmp_path, monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module, "_POLL_S", 0.05)
    monkeypatch.setattr(module.fcntl, "flock", refuse)
    require_alone(lambda purpose: table_lock(str(tmp_path), purpose))
    assert "the file system has no locks (No locks available), so marker files in" in caplog.text
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_folder_that_takes_no_appends_gets_the_markers(tmp_path, monkeypatch):
    make_volume(tmp_path, monkeypatch)
    monkeypatch.setattr(module, "_POLL_S", 0.05)
    require_alone(lambda purpose: table_lock(str(tmp_path), purpose))
    assert [path.name for path in tmp_path.iterdir()] == ["locks"]
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_lock_that_fails_for_another_reason_is_an_error(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(module.fcntl, "flock", fail)
    with pytest.raises(OSError, match="Input/output error"), table_lock(str(tmp_path), "vacuum"):
        pass


def test_a_lock_is_kept_as_long_as_its_holder_lives(lock, monkeypatch):
    monkeypatch.setattr(module, "DEAD_S", 6.0)  # a slow store answers within this
    order = []
    held = threading.Event()

    def vacuum() -> None:
        with lock("vacuum") as require:
            held.set()
            time.sleep(1.25 * module.DEAD_S)
            require()
            order.append("vacuum")

    thread = threading.Thread(target=vacuum)
    thread.start()
    held.wait(20)
    with lock("read"):
        order.append("pin")
    thread.join()
    assert order == ["vacuum", "pin"]


def test_the_lock_of_a_killed_process_is_taken_away_and_said(lock, server, caplog):
    command = [sys.executable, "-c", HOLDER, lock.folder, json.dumps(server.storage_options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        os.kill(holder.pid, signal.SIGKILL)
    with lock("read"):
        pass
    assert f"waiting for vacuum of process {holder.pid}" in caplog.text
    assert f"removing the lock of vacuum of process {holder.pid}" in caplog.text


@pytest.mark.parametrize("purpose", ["vacuum", "read"])
def test_a_holder_that_the_store_did_not_hear_of_for_too_long_has_lost_the_lock_for_good(lock, server, purpose):
    with lock(purpose) as require:
        require()
        with server.hanging():
            time.sleep(module.DEAD_S)
        time.sleep(1)
        with pytest.raises(TableConflictError, match=r"could not be renewed .* nothing more is done"):
            require()


def test_a_renewal_that_others_saw_too_late_has_lost_the_lock_though_it_was_sent_late(lock, monkeypatch):
    """A store that refuses and is slow then: others saw no change for longer than they wait for a dead process."""
    numbers, landed = itertools.count(), threading.Event()

    def slow(*args: Any) -> None:
        number = next(numbers)
        if number == 1:
            raise ConnectionError("refused")
        if number == 2:
            time.sleep(module.DEAD_S - 1.5 * module._RENEW_S)
        write_bytes(*args)
        if number == 2:
            landed.set()

    monkeypatch.setattr(module, "write_bytes", slow)
    with lock("vacuum") as require:
        landed.wait(20)
        time.sleep(0.05)
        with pytest.raises(TableConflictError, match="nothing more is done"):
            require()
