"""An image that spins, bursts or kills its decoder costs one row: real files, in a real two-executor Spark."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from etl_pictures import write_image
from etl_poison import jpeg_of_many_scans, png_of, png_that_claims
from spark_jobs import failed_tasks
from stored_rows import stored_rows

from lakelens import ImageTable
from lakelens.etl.images.recipe import Limits

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

GOOD = 8


def decoders() -> list[psutil.Process]:
    """The decoders' processes: children of Spark's Python workers, which are children of its daemon."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            family = [process, *process.parents()[:2]]
            if len(family) == 3 and all("pyspark.daemon" in member.cmdline() for member in family):
                found.append(process)
    return found


@contextlib.contextmanager
def killing_busy_decoders(after_cpu_s: float) -> Iterator[list[int]]:
    """Kills every decoder that has worked for so long, as the kernel does when memory is short."""
    killed: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            for process in decoders():
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    if times.user + times.system > after_cpu_s:
                        process.kill()
                        killed.append(process.pid)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield killed
    finally:
        done.set()
        watcher.join()


def test_an_image_beyond_its_seconds_or_memory_or_whose_decoder_dies_costs_its_own_row(spark, tmp_path):
    source, table = tmp_path / "source", ImageTable(spark, tmp_path / "t")
    for number in range(GOOD):
        write_image(source / "cat" / f"{number}.jpg", seed=number)
    spins = source / "cat" / "spins.jpg"
    spins.write_bytes(jpeg_of_many_scans())
    (source / "cat" / "bursts.png").write_bytes(png_of(9000, 9000))
    (source / "cat" / "bomb.png").write_bytes(png_that_claims(60_000, 60_000))
    # A file that no one can read, not even root: its first page is not mapped.
    (source / "cat" / "unreadable.jpg").symlink_to("/proc/self/mem")
    failed = failed_tasks(spark)
    # The spinning file takes its seconds twice.
    result = table.ingest(source, size=32, limits=Limits(timeout_s=4, memory_bytes=150_000_000))
    assert result.reasons == {"timeout": 1, "out_of_memory": 1, "too_many_pixels": 1, "unreadable": 1}
    assert (result.rows_in, result.stored, result.quarantined) == (GOOD + 4, GOOD, 4)
    assert len(stored_rows(table.location)) == GOOD
    os.utime(spins, (1_000_000_000, 1_000_000_000))
    with killing_busy_decoders(after_cpu_s=0.5) as killed:
        result = table.ingest(source, limits=Limits(timeout_s=200))
    assert killed
    # What could not be read is tried again each time.
    assert (result.reasons, result.stored, result.skipped) == ({"decoder_crashed": 1, "unreadable": 1}, 0, GOOD + 2)
    assert failed_tasks(spark) == failed
    rows = {Path(file.path).name: file for file in table.quarantine().files}
    assert rows["spins.jpg"].reason == "decoder_crashed"
    assert "SIGKILL" in rows["spins.jpg"].error
    assert decoders() == []
