"""A table of a million images: what grows with the number of images, and what does not.

    python -m benchmarks.scale [--images 100000 1000000] [--json] [--folder KEPT]

Tiny images lie in class folders; no two have equal pixels. At every size measured once, in seconds and in peak memory
of the driver's Python, the JVM and one Python worker: an ingest of the new images, an ingest that finds nothing new, an
ingest after 1 % of the files have changed, a feed's plan and its first batch, the history, and a read and a change of
the ledger. Decoding is nearly free here, so the seconds of the ingest are those of everything else.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .contender import Contender
from .harness import Report, parser, positive, rounded, scratch, tell
from .memory import PeakMemory
from .sparks import session, stored_files

_CLASSES = 100
_CHUNK = 10_000
_LOOK_S = 0.25  # a look at the memory of large processes takes tenths of a second
_CALL_S = 4 * 3600.0


def write_images(folder: Path, first: int, last: int, variant: int = 0) -> None:
    """Writes images `first` to `last` on all cores; another `variant` gives them other pixels.

    Args:
        folder: The folder of the classes.
        first: The number of the first image.
        last: The number after the last one.
        variant: 0 to 255.
    """
    for number in range(_CLASSES):
        (folder / f"class-{number:03d}").mkdir(parents=True, exist_ok=True)
    starts = range(first, last, _CHUNK)
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        pool.starmap(_write_some, [(folder, start, min(last, start + _CHUNK), variant) for start in starts])


def _write_some(folder: Path, first: int, last: int, variant: int) -> None:
    from PIL import Image

    for number in range(first, last):
        # Four pixels: three carry the number, one the variant.
        pixels = bytes([*number.to_bytes(3, "big"), variant, 0, 0, number % 251, 0, 0, 255, 255, number % 241])
        content = io.BytesIO()
        Image.frombytes("RGB", (2, 2), pixels).save(content, "PNG")
        path = folder / f"class-{number % _CLASSES:03d}" / f"{number:08d}.png"
        path.write_bytes(content.getvalue())


class Driver:
    """A driver of lakelens with its Spark session."""

    def __init__(self, folder: str, source: str, table: str) -> None:
        self.spark = session(Path(folder), **{"spark.driver.memory": "4g"})
        self.source, self.table = source, table

    def ingest(self) -> dict[str, Any]:
        """Ingests the folder; the images are stored as 2 x 2 pixels."""
        from lakelens import ImageTable

        started = time.perf_counter()
        result = ImageTable(self.spark, self.table).ingest(self.source, size=2, store="raw_rgb")
        seconds = time.perf_counter() - started
        return {"s": seconds, "stored": result.stored, "skipped": result.skipped, "quarantined": result.quarantined}

    def history(self) -> dict[str, Any]:
        """Reads the history with its class counts."""
        from lakelens import ImageTable

        started = time.perf_counter()
        versions = len(ImageTable(self.spark, self.table).history())
        return {"s": time.perf_counter() - started, "versions": versions}

    def ledger(self) -> dict[str, Any]:
        """Reads the ledger, and changes it twice by a pin that comes and goes."""
        from lakelens import ImageTable
        from lakelens.ledger import store
        from lakelens.table import Table

        started = time.perf_counter()
        store.read(Table.of(self.table))
        read = time.perf_counter() - started
        table = ImageTable(self.spark, self.table)
        started = time.perf_counter()
        table.pin("scale", table.version)
        table.unpin("scale")
        return {"s": read, "change_s": (time.perf_counter() - started) / 2}

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


class Feed:
    """A process that trains, as far as the feed goes."""

    def plan(self, table: str) -> dict[str, Any]:
        """Plans the train split of the newest version and reads one batch of 256 images."""
        from lakelens import DeltaFeed

        started = time.perf_counter()
        feed = DeltaFeed(table, split="train")
        planned = time.perf_counter() - started
        next(iter(feed.as_numpy(256)))
        return {"s": planned, "first_batch_s": time.perf_counter() - started, "rows": feed.rows}


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    counts = sorted(set(arguments.images))
    report = Report("scale", {"images": counts})
    with scratch(arguments.folder) as (_, temporary):
        source, table = temporary / "images", temporary / "table"
        places = {"folder": str(temporary / "spark"), "source": str(source), "table": str(table)}
        with Contender("benchmarks.scale:Driver", temporary / "driver.log", **places) as driver:
            made = 0
            for count in counts:
                tell(f"writing {count - made} images")
                write_images(source, made, count)
                _measure(report, driver, temporary, count, count - made)
                made = count
    _growth(report, counts)
    return report


def _measure(report: Report, driver: Contender, temporary: Path, count: int, new: int) -> None:
    source, table = temporary / "images", temporary / "table"
    found = _step(report, f"ingest {new} new", count, driver, "ingest")
    _require(found["stored"] == new, found)
    found = _step(report, "ingest nothing new", count, driver, "ingest")
    _require((found["stored"], found["skipped"]) == (0, count), found)
    changed = count // 100
    write_images(source, 0, changed, variant=count % 255 + 1)
    found = _step(report, "ingest 1 % changed", count, driver, "ingest")
    _require(found["stored"] == changed, found)
    _step(report, "history", count, driver, "history")
    ledger = _step(report, "ledger", count, driver, "ledger")
    report.facts[f"ledger {count}: s of a change, bytes"] = [
        rounded(ledger["change_s"], 3),
        _bytes(table / "_lakelens"),
    ]
    with Contender("benchmarks.scale:Feed", temporary / "feed.log") as feed:
        planned = _step(report, "feed plan", count, feed, "plan", table=str(table))
    report.facts[f"feed plan {count}: s to the first batch"] = rounded(planned["first_batch_s"], 3)
    files, rows, size = stored_files(str(table))
    log = _bytes(table / "_delta_log")
    report.facts[f"table {count}"] = {"files": files, "rows": rows, "bytes": size, "log_bytes": log}


def _step(report: Report, name: str, count: int, who: Contender, how: str, **arguments: Any) -> dict[str, Any]:
    with PeakMemory(who.pid, _LOOK_S) as memory:
        found: dict[str, Any] = who.call(how, timeout_s=_CALL_S, **arguments)
    tell(f"{name} of {count}: {found} {memory.as_json()}")
    report.add(f"{name} {count}", "s", [found["s"]])
    report.facts[f"{name} {count} memory"] = memory.as_json()
    return found


def _require(holds: bool, found: dict[str, Any]) -> None:
    if not holds:
        raise ValueError(f"{found} is not what was to be ingested")


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _growth(report: Report, counts: Sequence[int]) -> None:
    """Adds the seconds for each further million images of what was measured at the smallest and the largest size."""
    small, large = counts[0], counts[-1]
    if small == large:
        return
    for name in ("ingest nothing new", "ingest 1 % changed", "history", "ledger", "feed plan"):
        less, more = (report.series[f"{name} {count}"].median for count in (small, large))
        grown = (more - less) / (large - small) * 1e6
        report.facts[f"{name}: s for each further million images"] = rounded(grown, 3)


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("A table of a million images.", repeats=None)
    flags.add_argument("--images", type=positive, nargs="+", default=[100_000, 1_000_000], help="how many images")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
