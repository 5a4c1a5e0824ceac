"""The lock between pins and VACUUMs where a table lies in an object store: markers, on a real S3 server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from s3_server import BUCKET, MISSING, S3Server, s3_server

from lakelens.errors import TableConflictError
from lakelens.etl import table_lock as module
from lakelens.etl.table_lock import table_lock
from lakelens.stores import names_in

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install 'lakelens[dev]'"),
]

# A process that holds the lock until it is killed.
HOLDER = """
import json, sys, time
from lakelens.etl.table_lock import table_lock
with table_lock(sys.argv[1], json.loads(sys.argv[2]), exclusive=True):
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

    def make(*, exclusive: bool):
        return table_lock(folder, server.storage_options, exclusive=exclusive)

    make.folder = folder
    yield make
    assert names_in(f"{folder}/locks", server.storage_options) == set()


def test_a_vacuum_is_alone_and_pins_are_together(lock):
    inside, most, wrong = [], [], []
    change = threading.Lock()

    def hold(exclusive: bool) -> None:
        for _ in range(3):
            with lock(exclusive=exclusive):
                with change:
                    inside.append(exclusive)
                    most.append(len(inside))
                    wrong.extend(inside if any(inside) and len(inside) > 1 else [])
                time.sleep(0.05)
                with change:
                    inside.remove(exclusive)

    threads = [threading.Thread(target=hold, args=(number < 2,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert max(most) > 1


def test_a_lock_is_kept_as_long_as_its_holder_lives(lock):
    order = []
    held = threading.Event()

    def vacuum() -> None:
        with lock(exclusive=True) as require:
            held.set()
            time.sleep(2 * module.DEAD_S)
            require()
            order.append("vacuum")

    thread = threading.Thread(target=vacuum)
    thread.start()
    held.wait(20)
    with lock(exclusive=False):
        order.append("pin")
    thread.join()
    assert order == ["vacuum", "pin"]


def test_the_lock_of_a_killed_process_is_taken_away_and_said(lock, server, caplog):
    command = [sys.executable, "-c", HOLDER, lock.folder, json.dumps(server.storage_options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        os.kill(holder.pid, signal.SIGKILL)
    with lock(exclusive=False):
        pass
    assert f"waiting for vacuum of process {holder.pid}" in caplog.text
    assert f"removing the lock of vacuum of process {holder.pid}" in caplog.text


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_holder_that_the_store_did_not_hear_of_for_too_long_has_lost_the_lock_for_good(lock, server, exclusive):
    with lock(exclusive=exclusive) as require:
        require()
        with server.hanging():
            time.sleep(module.DEAD_S)
        time.sleep(1)
        with pytest.raises(TableConflictError, match=r"could not be renewed .* nothing more is done"):
            require()
