"""What strangers on the network can do to a job on executors: nothing."""

from __future__ import annotations

import contextlib
import pickle
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from leftovers import wait_until

from lakelens.errors import LaunchError
from lakelens.training.rank.frames import HEADER, MAX_BODY_BYTES, Kind, pack, pack_pair, unpack_pair
from lakelens.training.runner.processes.rank_record import RankEvent
from lakelens.training.runner.spark import driver_channel, task_channel
from lakelens.training.runner.spark.driver_channel import DriverChannel
from lakelens.training.runner.spark.sealed_frames import Seal, SealedReader
from lakelens.training.runner.spark.stage_ranks import StageRanks
from lakelens.training.runner.spark.task_channel import TaskChannel

pytestmark = pytest.mark.unit


class Driver:
    """A driver's channel that notes what it hears."""

    def __init__(self, size=2):
        self.secret = secrets.token_bytes(32)
        self.frames, self.lost, self.rules, self._clients = [], [], [], []
        self.channel = DriverChannel(
            size, self.secret, "127.0.0.1", 0, lambda rank, frame: self.frames.append((rank, frame)), self._lose
        )

    def _lose(self, rank, rule):
        self.rules.append(rule)
        self.lost.append(rank)

    def stranger(self):
        return self._client(socket.create_connection(("127.0.0.1", self.channel.port), timeout=5))

    def task(self, rank, secret=None, kind=TaskChannel, **hello):
        return self._client(kind("127.0.0.1", self.channel.port, secret or self.secret, {**hello, "rank": rank}))

    def tasks(self, size=2):
        """The tasks of all ranks, once they are heard."""
        tasks = [self.task(rank) for rank in range(size)]
        wait_until(lambda: len(self.frames) == size)
        return tasks

    def _client(self, client):
        self._clients.append(client)
        return client

    def close(self):
        for client in self._clients:
            client.close()
        self.channel.close()


class GreetedOnly(TaskChannel):
    """A task that has shaken hands and has yet to say its rank."""

    def send(self, kind, body=b""):
        if kind == Kind.HELLO:
            self.hello = body
        else:
            super().send(kind, body)

    def introduce(self):
        super().send(Kind.HELLO, self.hello)


@pytest.fixture
def driver() -> Iterator[Driver]:
    with contextlib.closing(Driver()) as driver:
        yield driver


def read(task, count):
    frames = []
    while len(frames) < count:
        frames += list(task.feed(task.socket.recv(65536)))
    return frames


def test_tasks_with_the_secret_are_heard_and_told_and_rendezvous_values_go_to_every_other_one_as_they_are(driver):
    tasks = driver.tasks()
    tasks[1].send(Kind.EVENT, {"kind": "ready"})
    wait_until(lambda: len(driver.frames) == 3)
    assert (driver.frames[-1][0], driver.frames[-1][1].json()) == (1, {"kind": "ready"})
    driver.channel.send(0, Kind.ASSIGN, {"a": 1})
    assert read(tasks[0], 1)[0].json() == {"a": 1}
    tasks[0].send(Kind.PUT, pack_pair("global_/0", b"\x80\x04anything"))
    assert unpack_pair(read(tasks[1], 1)[0].body) == ("global_/0", b"\x80\x04anything")
    for task in tasks:
        task.close()
    wait_until(lambda: sorted(driver.lost) == [0, 1])


def test_a_client_without_the_secret_is_refused_and_so_is_a_driver_without_it(driver, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(task_channel, "CONNECT_TIMEOUT_S", 0.5)
        with pytest.raises(LaunchError, match="cannot reach the driver"):
            driver.task(0, secret=secrets.token_bytes(32))
    assert driver.frames == []

    # Something that listens in the driver's place cannot prove that it is the driver.
    impostor = socket.create_server(("127.0.0.1", 0))

    def answer():
        client, _ = impostor.accept()
        client.sendall(secrets.token_bytes(32))
        client.recv(64)
        client.sendall(secrets.token_bytes(32))
        client.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(LaunchError, match="is not this job's driver"):
        TaskChannel("127.0.0.1", impostor.getsockname()[1], driver.secret, {"rank": 0})
    thread.join()
    impostor.close()


@pytest.mark.parametrize(
    "rubbish",
    [b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(64), pickle.dumps([1] * 100), bytes(range(256)) * 16],
    ids=["http", "zeros", "pickle", "noise"],
)
def test_rubbish_is_hung_up_on(driver, rubbish):
    with driver.stranger() as client:
        client.sendall(rubbish)
        client.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(4096):
                pass
    assert driver.frames == []
    driver.task(0).close()  # and a rank still gets in


def test_a_frame_that_was_changed_repeated_or_made_too_large_ends_the_connection():
    key = secrets.token_bytes(32)

    def sealed(seal, body):
        frame = pack(Kind.EVENT, body)
        return frame + seal.mac(frame)

    sender = Seal(key, b"to driver")
    first, second = sealed(sender, b"{}"), sealed(sender, b"[]")
    assert [frame.body for frame in SealedReader(Seal(key, b"to driver")).feed(first + second)] == [b"{}", b"[]"]
    for stream in (first + first, second, first[:-1] + bytes([first[-1] ^ 1]), first[:5] + b"x" + first[6:]):
        with pytest.raises(LaunchError, match="HMAC is wrong"):
            list(SealedReader(Seal(key, b"to driver")).feed(stream))
    with pytest.raises(LaunchError, match="HMAC is wrong"):
        list(SealedReader(Seal(key, b"to task")).feed(first))
    with pytest.raises(LaunchError, match="at most"):
        list(SealedReader(Seal(key, b"to driver")).feed(HEADER.pack(1, MAX_BODY_BYTES + 1)))


def test_a_rank_is_accepted_once_and_only_if_the_job_has_it_and_nobody_once_all_are_there(driver):
    driver.tasks(1)
    for rank in (0, 2, -1, "0"):
        assert driver.task(rank).socket.recv(10) == b""
    assert len(driver.frames) == 1
    driver.task(1)
    wait_until(lambda: len(driver.frames) == 2)
    with pytest.raises(OSError):
        driver.stranger()


def test_a_crowd_of_silent_strangers_does_not_keep_the_ranks_out(monkeypatch):
    monkeypatch.setattr(driver_channel, "HANDSHAKE_TIMEOUT_S", 0.5)
    with contextlib.closing(Driver(size=1)) as driver:
        for _ in range(60):
            driver.stranger()
        driver.task(0)


class HeldUp:
    """Holds the channel's thread while what follows arrives, so that it finds all of it at once."""

    def __init__(self, driver, task):
        self._driver, self._task = driver, task
        self._held, self._go_on = threading.Event(), threading.Event()

    def __enter__(self):
        def hold(rank, frame):
            self._driver.channel._on_frame = heard
            self._held.set()
            assert self._go_on.wait(60)
            heard(rank, frame)

        heard, self._driver.channel._on_frame = self._driver.channel._on_frame, hold
        self._task.send(Kind.EVENT, {"kind": "hold"})
        assert self._held.wait(60)

    def __exit__(self, *_):
        time.sleep(0.1)  # what was sent on loopback has arrived
        self._go_on.set()


def test_strangers_who_speak_while_the_last_rank_comes_in_do_not_end_the_job(driver):
    first = driver.task(0)
    greeted = driver.task(1, kind=GreetedOnly)
    strangers = [driver.stranger() for _ in range(3)]
    for stranger in strangers:
        assert stranger.recv(1)  # the driver has accepted it
    with HeldUp(driver, first):
        greeted.introduce()
        driver.stranger()
        for stranger in strangers:
            stranger.sendall(b"x")
    wait_until(lambda: len(driver.frames) == 3)
    driver.channel.send(1, Kind.ASSIGN, {"a": 1})
    assert read(greeted, 1)[0].json() == {"a": 1}


def test_what_a_task_has_sent_arrives_though_it_closes_without_having_read_all_that_the_driver_sent(driver):
    tasks = driver.tasks()
    driver.channel.send(0, Kind.TELL, {"number": 0, "body": {"pause": True}})
    assert tasks[0].socket.recv(1, socket.MSG_PEEK)
    pieces = [bytes([number]) * (64 << 10) for number in range(16)]
    with HeldUp(driver, tasks[1]):
        for piece in pieces:
            tasks[0].send(Kind.VALUE, piece)
        closing = threading.Thread(target=tasks[0].close)
        closing.start()
    wait_until(lambda: driver.lost == [0])
    assert [frame.body for rank, frame in driver.frames if rank == 0 and frame.kind == Kind.VALUE] == pieces
    closing.join(timeout=60)


def test_a_task_that_takes_nothing_is_lost_without_the_others(monkeypatch):
    with contextlib.closing(Driver(size=3)) as driver:
        tasks = driver.tasks(3)
        monkeypatch.setattr(driver_channel, "MAX_UNSENT_BYTES", 1 << 20)
        while sorted(driver.lost) != [1, 2]:  # once the buffers of both connections are full
            tasks[0].send(Kind.PUT, pack_pair("global_/0", bytes(900_000)))
        driver.channel.send(0, Kind.ASSIGN, {"a": 1})
        assert read(tasks[0], 1)[0].json() == {"a": 1}


HELLO = {
    **{"host": "a", "machine": "m", "executor": "1", "python": "3.11.9", "version": "0.1.0"},
    **{"problem": None, "gpus": [], "visible_gpus": None},
}


@pytest.fixture
def running(driver) -> StageRanks:
    """Takes the frames of the channel as a job on the cluster does."""
    run = object.__new__(StageRanks)
    run._inbox, run._heard_at = queue.SimpleQueue(), [None, None]
    driver.channel._on_frame = run._receive
    return run


@pytest.mark.parametrize(
    ("kind", "body", "rule"),
    [
        (Kind.EVENT, {"kind": ["x"], "data": {}}, "an event has kind=['x']; kinds are started, ready, "),
        (Kind.EVENT, {"kind": "ready"}, "an event of kind 'ready' has data=None; it must be an object"),
        (Kind.EVENT, {"kind": "line", "data": {"text": 1}}, "an event of kind 'line' has stream=None; it must be str"),
        (Kind.EVENT, {"kind": "asked", "data": {"number": "1", "body": {}}}, "'asked' has number='1'; it must be int"),
        (Kind.EVENT, {"kind": "returned", "data": {}}, "'returned' has pickle=None; it must be int"),
        (Kind.EVENT, {"kind": "returned", "data": {"pickle": 1, "large": [7]}}, "has large=[7]; it must be [kind, byt"),
        (Kind.EVENT, {"kind": "ended", "data": {"signal": "9"}}, "'ended' has signal='9'; it must be int or null"),
        (Kind.EVENT, b"[" * 100_000, f"a frame of kind {Kind.EVENT} does not hold JSON"),
        (Kind.PUT, b"\x00", f"a frame of kind {Kind.PUT} ends before its key does, after 1 bytes"),
        (Kind.PUT, b"\x00\x09key", f"a frame of kind {Kind.PUT} ends before its key does, after 5 bytes"),
        (Kind.HELLO, {**HELLO, "rank": 1}, "a task introduces itself once"),
        (Kind.ASSIGN, {}, f"the task of rank 0 cannot send a frame of kind {Kind.ASSIGN}"),
    ],
)
def test_a_malformed_frame_ends_its_own_connection_with_the_rule_and_no_other(driver, running, kind, body, rule):
    tasks = [driver.task(rank, **HELLO) for rank in (0, 1)]
    wait_until(lambda: None not in running._heard_at)
    tasks[0].send(kind, body)
    wait_until(lambda: driver.lost == [0])
    assert rule in driver.rules[0]
    while not running._inbox.empty():
        running._inbox.get()
    tasks[1].send(Kind.EVENT, {"kind": "ready", "data": {}})
    assert running._inbox.get(timeout=60) == (1, RankEvent(1, "ready"))


def test_an_introduction_that_lacks_what_the_driver_needs_ends_its_connection_with_the_rule(driver, running):
    driver.task(0, **{**HELLO, "python": None})
    wait_until(lambda: driver.lost == [0])
    assert driver.rules == ["a HELLO has python=None; it must be str"]
    assert running._inbox.empty()
