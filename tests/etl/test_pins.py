from __future__ import annotations

import json
import threading

import pytest

from lakelens.errors import InvalidArgumentError, VersionNotFoundError
from lakelens.etl.pins import pin, pins, track, tracked, unpin, untrack, version_of_pin

pytestmark = pytest.mark.unit


def test_a_pin_names_a_version_until_it_is_taken_away(tmp_path):
    table = str(tmp_path)
    assert pins(table) == {}
    pin(table, "before-relabel", 3)
    pin(table, "v1.0", 0)
    assert pins(table) == {"before-relabel": 3, "v1.0": 0}
    assert version_of_pin(table, "v1.0") == 0
    assert version_of_pin(table, "nothing") is None
    unpin(table, "v1.0")
    assert pins(table) == {"before-relabel": 3}


def test_a_pin_does_not_move_unless_asked(tmp_path):
    pin(str(tmp_path), "gold", 1)
    pin(str(tmp_path), "gold", 1)
    with pytest.raises(InvalidArgumentError, match=r"'gold'.*version 1.*unpin"):
        pin(str(tmp_path), "gold", 2)
    pin(str(tmp_path), "gold", 2, replace=True)
    assert pins(str(tmp_path)) == {"gold": 2}


def test_unpinning_what_is_not_pinned_names_what_is(tmp_path):
    pin(str(tmp_path), "gold", 1)
    with pytest.raises(VersionNotFoundError, match=r"'silver'.*gold"):
        unpin(str(tmp_path), "silver")


@pytest.mark.parametrize(
    "name", ["", "1", "12a", "2026-11-20", "latest", "a/b", "../x", "a b", ".x", "a" * 101, "gold\n", None, 3]
)
def test_a_name_that_could_be_something_else_is_refused(tmp_path, name):
    with pytest.raises(InvalidArgumentError, match="pin's name"):
        pin(str(tmp_path), name, 1)
    assert not list(tmp_path.rglob("*.json"))


def test_tracked_versions_know_their_runs(tmp_path):
    table = str(tmp_path)
    track(table, 1, "run/a")
    track(table, 1, "run/a")
    track(table, 1, "b")
    track(table, 2, "b")
    assert {version: sorted(runs) for version, runs in tracked(table).items()} == {1: ["b", "run/a"], 2: ["b"]}
    assert untrack(table, "b") == 2
    assert tracked(table) == {1: ["run/a"]}


def test_pins_at_once_are_all_kept_and_readers_never_see_half_a_file(tmp_path):
    table, seen = str(tmp_path), []
    stop = threading.Event()

    def read():
        while not stop.is_set():
            seen.append(pins(table))

    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=pin, args=(table, f"p{n}", n)) for n in range(30)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert pins(table) == {f"p{n}": n for n in range(30)}
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock" and path.suffix != ".json"
    ]


def test_a_pin_is_a_plain_json_file_beside_the_data(tmp_path):
    pin(str(tmp_path), "gold", 4)
    record = json.loads((tmp_path / "_lakelens" / "pins" / "gold.json").read_text())
    assert (record["name"], record["version"]) == ("gold", 4)
