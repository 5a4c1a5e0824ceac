"""Sessions that fetch the same JARs at the same time."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from lakelens.spark.maven import fetching

pytestmark = pytest.mark.unit

PACKAGES = ("org.one:first_2.12:1.0", "org.two/second:2.0")


def fetch(folder: Path) -> None:
    """Leaves what Spark leaves of the packages."""
    (folder / "jars").mkdir(exist_ok=True)
    for name in ("org.one_first_2.12-1.0.jar", "org.two_second-2.0.jar"):
        (folder / "jars" / name).touch()


def test_of_sessions_that_fetch_one_does_and_the_others_wait_and_then_start_side_by_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    together = threading.Barrier(3, timeout=20)

    def start() -> None:
        with fetching(PACKAGES, str(tmp_path)):
            together.wait()

    waiting = [threading.Thread(target=start) for _ in range(2)]
    with caplog.at_level(logging.WARNING, "lakelens.spark.maven"):
        with fetching(PACKAGES, str(tmp_path)):
            for thread in waiting:
                thread.start()
            while len(caplog.messages) < 2:
                time.sleep(0.01)
            assert together.n_waiting == 0
            fetch(tmp_path)
        together.wait()
    for thread in waiting:
        thread.join()
    assert caplog.messages == [f"waiting for another session that fetches packages into {tmp_path}"] * 2
    assert not together.broken


def test_a_session_that_fetches_nothing_waits_for_none(tmp_path: Path) -> None:
    fetch(tmp_path)
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with fetching(PACKAGES, str(tmp_path)), fetching((), str(tmp_path)):
            pass
    finally:
        os.close(handle)


def test_a_session_that_failed_to_fetch_lets_the_next_one_try(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no network"), fetching(PACKAGES, str(tmp_path)):
        raise ValueError("no network")
    with fetching(PACKAGES, str(tmp_path)):
        assert [path.name for path in tmp_path.iterdir()] == []


def test_a_folder_that_cannot_be_made_is_left_to_ivy_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with fetching(PACKAGES, str(tmp_path / "file" / "ivy")):
        pass
