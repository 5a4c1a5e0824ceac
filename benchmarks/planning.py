"""Seconds of an ingest that finds nothing new among photographs of 40 kB, beside Spark's listing and reading them.

Reading is what an ingest without a memory has to do at least: every file once, hashed and not decoded, on as many
processes as there are cores; once with the files in the machine's memory and once from its disk. The photographs lie in
class folders (4 GB for 100,000).
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender
from .harness import Measure, Report, command, parser, positive, rounded, scratch
from .sparks import OnSpark

_CLASSES = 10
_DISTINCT = 200


def copies(originals: Sequence[Path], folder: Path, count: int) -> None:
    """Makes files, each with its own blocks on the disk."""
    for number in range(_CLASSES):
        (folder / f"class-{number}").mkdir(parents=True, exist_ok=True)
    for index in range(count):
        content = originals[index % len(originals)].read_bytes()
        (folder / f"class-{index % _CLASSES}" / f"{index:06d}.jpg").write_bytes(content)
    os.sync()  # pages that are not on the disk yet could not be dropped from memory


class Ingest(OnSpark):
    """lakelens's ingest and Spark's listing."""

    def ingest(self, source: str, table: str) -> dict[str, Any]:
        """Ingests small images, so that the table does not need as much disk space as the photographs."""
        from lakelens import ImageTable

        started = time.perf_counter()
        result = ImageTable(self.spark, table).ingest(source, size=8, resample="box", store="raw_rgb")
        return {"seconds": time.perf_counter() - started, "stored": result.stored, "skipped": result.skipped}

    def listing(self, source: str) -> dict[str, Any]:
        """Lists the folder with Spark's `binaryFile` source, without the files' content."""
        files = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(source)
        started = time.perf_counter()
        count = files.select("path", "length", "modificationTime").count()
        return {"seconds": time.perf_counter() - started, "files": count}


class Reader:
    """Reads and hashes every file: what an ingest without a memory does at least."""

    def __init__(self, folder: str) -> None:
        self._pool = multiprocessing.get_context("fork").Pool(os.cpu_count())

    def read(self, source: str) -> dict[str, Any]:
        """Reads them on all cores."""
        started = time.perf_counter()
        count = sum(1 for _ in self._pool.imap_unordered(_hash, Path(source).rglob("*.jpg"), chunksize=64))
        return {"seconds": time.perf_counter() - started, "files": count}

    def read_from_disk(self, source: str) -> dict[str, Any]:
        """Does the same after the machine has let go of the files' contents."""
        for path in Path(source).rglob("*.jpg"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return self.read(source)

    def close(self) -> None:
        """Ends the pool."""
        self._pool.terminate()


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    count = arguments.files
    report = Report.of("planning", arguments, "files", "repeats")
    with scratch(arguments.folder) as (kept, temporary):
        source, table = temporary / "photographs", temporary / "table"
        copies(photos.photographs(kept, _DISTINCT).files, source, count)
        read: dict[str, Any] = {"source": str(source), "timeout_s": 3600}
        ingest = {**read, "table": str(table)}
        with Contender(Ingest, temporary / "ingest") as spark, Contender(Reader, temporary / "reader") as reader:
            seconds = spark.call("ingest", **ingest)["seconds"]
            report.facts[f"ingest of {count} new, s"] = rounded(seconds, 3)
            spark.call("ingest", **ingest)
            measures = {
                "nothing new": _seconds(spark, "ingest", {"skipped": count, "stored": 0}, ingest),
                "spark listing": _seconds(spark, "listing", {"files": count}, read),
                "reading": _seconds(reader, "read", {"files": count}, read),
                "reading from disk": _seconds(reader, "read_from_disk", {"files": count}, read),
            }
            report.measure(arguments.repeats, measures, {"s": (f" {count}", "s")}, "ingest ")
    for other in ("reading", "reading from disk", "spark listing"):
        report.compare(f"ingest nothing new {count}", f"ingest {other} {count}")
    return report


def _seconds(contender: Contender, method: str, expected: dict[str, int], given: dict[str, Any]) -> Measure:
    """Makes the function that calls a method once and checks what it counts."""

    def once(_: int) -> dict[str, float]:
        found = contender.call(method, **given)
        if not expected.items() <= found.items():
            raise ValueError(f"{method}: {found}, {expected} was expected")
        return {"s": found["seconds"]}

    return once


if __name__ == "__main__":
    flags = parser(__doc__)
    flags.add_argument("--files", type=positive, default=10_000, help="how many files")
    command(flags, run)
