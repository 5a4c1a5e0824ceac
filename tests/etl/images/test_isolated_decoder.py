from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil
import pytest
from etl_pictures import encoded, picture, write_image

from lakelens.errors import ImageError
from lakelens.etl.images import isolated_decoder as isolate
from lakelens.etl.images.isolated_decoder import IsolatedDecoder, SourceImage, make_stored_image
from lakelens.etl.images.recipe import Limits, Recipe

pytestmark = pytest.mark.system

RECIPE = Recipe(size=32)


def kinds(results) -> list[str]:
    return [result.reason if isinstance(result, ImageError) else "stored" for result in results]


def misbehaving(data, recipe, limits):
    """Stands where Pillow stands, and does what a bad decoder does when the bytes ask for it."""
    if data == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if data == b"spin":
        while True:
            pass
    if data == b"memory":
        return bytearray(8 * limits.memory_bytes)
    if data == b"exit":
        os._exit(3)
    return make_stored_image(data, recipe, limits)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_a_child_stores_what_the_function_stores_in_the_order_of_paths_and_bytes_mixed(tmp_path):
    sources, expected = [], []
    for number in range(40):
        data = write_image(tmp_path / f"{number} b%é.jpg", seed=number)
        path = os.fsencode(tmp_path / f"{number} b%é.jpg")
        sources.append(SourceImage(data=data) if number % 3 == 0 else SourceImage(path=path))
        expected.append(make_stored_image(data, RECIPE, Limits()))
    with IsolatedDecoder(RECIPE, Limits()) as decoder:
        assert list(decoder.decode_all(sources)) == expected


@pytest.mark.parametrize(
    ("poison", "reason"), [(b"exit", "decoder_crashed"), (b"memory", "out_of_memory"), (b"spin", "timeout")]
)
def test_a_decoder_that_crashes_or_spins_costs_one_image(monkeypatch, tmp_path, poison, reason):
    monkeypatch.setattr(isolate, "make_stored_image", misbehaving)
    (tmp_path / "poison").write_bytes(b"crash")
    good, bad = SourceImage(data=encoded(picture())), SourceImage(data=poison)
    write_image(tmp_path / "good.jpg")
    by_path = [
        SourceImage(path=os.fsencode(tmp_path / name)) for name in ("good.jpg", "poison", "good.jpg", "good.jpg")
    ]
    limits = Limits(timeout_s=5.0 if poison == b"spin" else 60.0, memory_bytes=256 * 1024**2)
    before = children()
    with IsolatedDecoder(RECIPE, limits) as decoder:
        results = list(decoder.decode_all([good, bad, good, *by_path]))
    assert kinds(results) == ["stored", reason, "stored", "stored", "decoder_crashed", "stored", "stored"]
    assert children() == before


def test_the_child_ends_with_the_block_even_when_it_spins(monkeypatch):
    monkeypatch.setattr(isolate, "make_stored_image", misbehaving)
    before = children()
    decoder = IsolatedDecoder(RECIPE, Limits())
    with decoder:
        decoder._send(SourceImage(data=b"spin"))
        assert len(children() - before) == 1
    assert children() == before


def test_the_child_dies_with_its_parent():
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        decoder = IsolatedDecoder(RECIPE, Limits())
        decoder._send(SourceImage(data=encoded(picture())))
        os.write(writing, str(decoder._pid).encode())
        time.sleep(60)
        os._exit(0)
    child = int(os.read(reading, 100))
    assert psutil.pid_exists(child)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    with contextlib.suppress(psutil.NoSuchProcess):
        orphan, deadline = psutil.Process(child), time.monotonic() + 60
        while orphan.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_files_that_cannot_be_read_have_a_reason(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "large.jpg").write_bytes(bytes(2000))
    (tmp_path / "memory.jpg").symlink_to("/proc/self/mem")
    names = ("none.jpg", "folder.jpg", "pipe.jpg", "memory.jpg", "large.jpg")
    sources = [*(SourceImage(path=os.fsencode(tmp_path / name)) for name in names), SourceImage(data=bytes(2000))]
    with IsolatedDecoder(RECIPE, Limits(max_bytes=1000, timeout_s=20)) as decoder:
        found = kinds(decoder.decode_all(sources))
    assert found == [*["unreadable"] * 4, *["too_many_bytes"] * 2]
