"""Planning an ingest at 100,000 files: one that finds nothing new.

    python -m benchmarks.planning [--files 10000 30000 100000] [--repeats 5] [--json] [--folder KEPT]

That many photographs of 40 kB lie in class folders (4 GB for 100,000) and have been ingested before, so that the
table's rows are lakelens's own. Measured is a further `ingest` that finds nothing new, beside what an ingest without a
memory has to do at least: reading every file once and hashing it, without decoding, on as many processes as there are
cores; once with the files in the machine's memory and once from its disk; and beside Spark's own listing of the folder.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender
from .harness import Report, interleave, parser, positive, rounded, scratch, tell
from .memory import PeakMemory
from .sparks import session

_CLASSES = 10
_DISTINCT = 200


def copies(originals: Sequence[Path], folder: Path, first: int, last: int) -> None:
    """Makes files `first` to `last`, each with its own blocks on the disk."""
    for number in range(_CLASSES):
        (folder / f"class-{number}").mkdir(parents=True, exist_ok=True)
    for index in range(first, last):
        content = originals[index % len(originals)].read_bytes()
        (folder / f"class-{index % _CLASSES}" / f"{index:06d}.jpg").write_bytes(content)
    os.sync()  # pages that are not on the disk yet could not be dropped from memory


class Ingest:
    """lakelens's ingest, Spark's listing and a plain reader, on one growing folder."""

    def __init__(self, folder: str) -> None:
        self.spark = session(Path(folder))

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

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


class Reader:
    """Reads and hashes every file: what an ingest without a memory does at least."""

    def __init__(self) -> None:
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
    counts = sorted(set(arguments.files))
    report = Report("planning", {"files": counts, "repeats": arguments.repeats})
    with scratch(arguments.folder) as (kept, temporary):
        originals = photos.files(photos.photographs(kept, _DISTINCT))
        _ingest(report, originals, counts, arguments.repeats, temporary)
    return report


def _ingest(report: Report, originals: Sequence[Path], counts: Sequence[int], repeats: int, temporary: Path) -> None:
    source, table = temporary / "photographs", temporary / "table"
    made = 0
    with (
        Contender("benchmarks.planning:Ingest", temporary / "ingest.log", folder=str(temporary / "ingest")) as spark,
        Contender("benchmarks.planning:Reader", temporary / "reader.log") as reader,
    ):
        for count in counts:
            tell(f"making and ingesting {count - made} files")
            copies(originals, source, made, count)
            found = spark.call("ingest", source=str(source), table=str(table), timeout_s=3600)
            report.facts[f"ingest of {count - made} new beside {made} known, s"] = rounded(found["seconds"], 3)
            made = count
            spark.call("ingest", source=str(source), table=str(table))
            measures = {
                "nothing new": _known(spark, source, table, count),
                "spark listing": lambda _: {"s": spark.call("listing", source=str(source))["seconds"]},
                "reading": _read(reader, "read", source, count),
                "reading from disk": _read(reader, "read_from_disk", source, count),
            }
            for name, values in interleave(repeats, measures, tell).items():
                report.add(f"ingest {name} {count}", "s", values["s"])
            for other in ("reading", "reading from disk", "spark listing"):
                report.compare(f"ingest nothing new {count}", f"ingest {other} {count}")
            with PeakMemory(spark.pid) as memory:
                spark.call("ingest", source=str(source), table=str(table))
            report.facts[f"ingest nothing new {count} memory"] = memory.as_json()
    _growth(report, "ingest nothing new", counts)


def _known(spark: Contender, source: Path, table: Path, count: int) -> Callable[[int], dict[str, float]]:
    def once(_: int) -> dict[str, float]:
        found = spark.call("ingest", source=str(source), table=str(table))
        if found["skipped"] != count or found["stored"]:
            raise ValueError(f"{found} for {count} files that are all known")
        return {"s": found["seconds"]}

    return once


def _read(reader: Contender, how: str, source: Path, count: int) -> Callable[[int], dict[str, float]]:
    def once(_: int) -> dict[str, float]:
        found = reader.call(how, source=str(source), timeout_s=3600)
        if found["files"] != count:
            raise ValueError(f"{found} for {count} files")
        return {"s": found["seconds"]}

    return once


def _growth(report: Report, name: str, counts: Sequence[int]) -> None:
    small, large = counts[0], counts[-1]
    if small == large:
        return
    seconds = {count: report.series[f"{name} {count}"].median for count in (small, large)}
    per_file = (seconds[large] - seconds[small]) / (large - small)
    report.facts[f"{name}: microseconds for each further file"] = rounded(per_file * 1e6, 3)
    report.facts[f"{name}: time for {large / small:g} times the files"] = rounded(seconds[large] / seconds[small], 3)


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("Planning an ingest at 100,000 files.")
    flags.add_argument("--files", type=positive, nargs="+", default=[10_000, 30_000, 100_000], help="how many files")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
