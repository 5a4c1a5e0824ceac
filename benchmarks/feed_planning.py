"""Planning a feed at 100,000 files, from a Delta log and a look for the files.

    python -m benchmarks.feed_planning [--files 10000 100000] [--repeats 3] [--json] [--folder KEPT]

A Delta log names that many files of 64 rows, written commit by commit as Delta writes it, with a checkpoint. The files
are empty except the largest ones, whose footers a plan reads. Measured is `DeltaFeed(...)` in a process that has
planned a small table before, so that imports are no part of it: seconds, processor seconds, growth of its peak memory,
and what a rank receives. It is compared with Spark's own list of the version's files, which does not look for them,
and, as the limit, with pyarrow reading the checkpoint's file actions once.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .contender import Contender
from .harness import Report, interleave, parser, positive, rounded, scratch, tell
from .sparks import session

_CLASSES = 10
_ROWS_OF_A_FILE = 64
_FILE_BYTES = 1_600_000
_ADDS_OF_A_COMMIT = 10_000
# Files with rows: those of which a plan reads the footers.
_REAL_FILES = 4
_SCHEMA = {
    "path": "string",
    "image": "binary",
    "format": "string",
    "height": "integer",
    "width": "integer",
    "label": "integer",
    "label_name": "string",
    "split": "string",
}


def write_log(table: Path, files: int) -> None:
    """Writes a Delta log that adds `files` files, a commit for every 10,000, and a checkpoint at its end."""
    from deltalake import DeltaTable

    log = table / "_delta_log"
    log.mkdir(parents=True)
    for version, start in enumerate(range(0, files, _ADDS_OF_A_COMMIT)):
        actions = _table_actions() if version == 0 else []
        actions += [_add(number) for number in range(start, min(files, start + _ADDS_OF_A_COMMIT))]
        lines = "\n".join(json.dumps(action) for action in actions)
        (log / f"{version:020d}.json").write_text(lines + "\n", encoding="utf-8")
    DeltaTable(str(table)).create_checkpoint()


def write_files(table: Path, files: int) -> None:
    """Makes the files that the log of a table names: empty, but for the largest ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (table / "split=train").mkdir(parents=True)
    for number in range(files):
        (table / _path(number)).touch()
    rows = pa.table({"label": pa.array(range(_ROWS_OF_A_FILE), pa.int32())})
    for number in range(max(0, files - _REAL_FILES), files):
        pq.write_table(rows, table / _path(number))


def _table_actions() -> list[dict[str, Any]]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _SCHEMA.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": ["split"],
        "configuration": {},
        "createdTime": 0,
    }
    return [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]


def _path(number: int) -> str:
    # Delta's own file names.
    name = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
    return f"split=train/part-{number:05d}-{uuid.UUID(name)}.c000.parquet"


def _add(number: int) -> dict[str, Any]:
    # The statistics that lakelens has Delta collect.
    label = number % _CLASSES
    bounds = {"path": f"file:/data/{number}.jpg", "format": "jpeg", "height": 299, "width": 299, "label": label}
    statistics = {"numRecords": _ROWS_OF_A_FILE, "minValues": bounds, "maxValues": bounds, "nullCount": {"label": 0}}
    add = {
        "path": _path(number),
        "partitionValues": {"split": "train"},
        "size": _FILE_BYTES + number,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps(statistics),
    }
    return {"add": add}


def _peak_mib() -> float:
    """This process's peak memory; getrusage would count that of the process which started it."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no VmHWM: memory is measured on Linux only")


class Feed:
    """lakelens's plan of a version, in a process that has planned nothing large before."""

    def plan(self, table: str) -> dict[str, Any]:
        """Plans the newest version.

        Returns:
            seconds and processor seconds of the plan; by how much the peak memory grew, in MiB; the bytes that a rank
            receives, and the seconds in which it unpacks them.
        """
        from lakelens import DeltaFeed

        before = _peak_mib()
        started, worked = time.perf_counter(), time.process_time()
        feed = DeltaFeed(table, split="train")
        seconds, processor = time.perf_counter() - started, time.process_time() - worked
        grown = _peak_mib() - before
        sent = pickle.dumps(feed)
        started = time.perf_counter()
        rows = pickle.loads(sent).rows  # noqa: S301 - our own bytes
        received = time.perf_counter() - started
        return {"s": seconds, "cpu_s": processor, "mib": grown, "sent": len(sent), "received_s": received, "rows": rows}


class SparkFiles:
    """Spark's own list of a version's files."""

    def __init__(self, folder: str) -> None:
        self.spark = session(Path(folder))

    def plan(self, table: str) -> dict[str, Any]:
        """Loads the version and asks for its files."""
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        started = time.perf_counter()
        files = self.spark.read.format("delta").load(table).inputFiles()
        return {"s": time.perf_counter() - started, "files": len(files)}

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


class Checkpoint:
    """The log, read once and not understood: the file actions of its checkpoint as Arrow."""

    def read(self, table: str) -> dict[str, Any]:
        """Reads them."""
        import pyarrow.parquet as pq

        (checkpoint,) = (Path(table) / "_delta_log").glob("*.checkpoint.parquet")
        started = time.perf_counter()
        rows = pq.read_table(checkpoint, columns=["add"]).num_rows
        return {"s": time.perf_counter() - started, "rows": rows}


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    counts = sorted(set(arguments.files))
    report = Report("feed_planning", {"files": counts, "repeats": arguments.repeats})
    with (
        scratch(arguments.folder) as (_, temporary),
        Contender("benchmarks.feed_planning:SparkFiles", temporary / "spark.log", folder=str(temporary / "s")) as spark,
        Contender("benchmarks.feed_planning:Checkpoint", temporary / "checkpoint.log") as checkpoint,
    ):
        write_log(temporary / "small", 8)
        write_files(temporary / "small", 8)
        for count in counts:
            tell(f"writing a log of {count} files")
            table = temporary / f"log-{count}"
            write_log(table, count)
            write_files(table, count)
            for warmed in (spark.call("plan", table=str(table)), checkpoint.call("read", table=str(table))):
                tell(f"warm: {warmed}")
            _measure(report, table, count, arguments.repeats, spark, checkpoint)
    _growth(report, counts)
    return report


def _measure(report: Report, table: Path, count: int, repeats: int, spark: Contender, checkpoint: Contender) -> None:
    measures: Mapping[str, Callable[[int], Mapping[str, float]]] = {
        "plan": _fresh(table, count),
        "spark": lambda _: {"s": spark.call("plan", table=str(table))["s"]},
        "checkpoint": lambda _: {"s": checkpoint.call("read", table=str(table))["s"]},
    }
    found = interleave(repeats, measures, tell)
    for name, values in found.items():
        report.add(f"{name} {count}", "s", values["s"])
    report.add(f"plan {count}, processor", "s", found["plan"]["cpu_s"])
    report.add(f"plan {count}, memory", "MiB", found["plan"]["mib"])
    report.compare(f"plan {count}", f"spark {count}", at_most=1.0)
    report.compare(f"plan {count}", f"checkpoint {count}")
    report.facts[f"plan {count}, bytes that a rank receives"] = int(max(found["plan"]["sent"]))
    report.facts[f"plan {count}, seconds in which a rank unpacks them"] = rounded(max(found["plan"]["received_s"]), 3)


def _fresh(table: Path, count: int) -> Callable[[int], dict[str, float]]:
    """Measures in its own process, whose imports a small table has paid for."""

    def once(_: int) -> dict[str, float]:
        with Contender("benchmarks.feed_planning:Feed", table.parent / "feed.log") as feed:
            feed.call("plan", table=str(table.parent / "small"))
            found = feed.call("plan", table=str(table))
        if found["rows"] != count * _ROWS_OF_A_FILE:
            raise ValueError(f"{found['rows']} rows were planned for {count} files of {_ROWS_OF_A_FILE}")
        return found

    return once


def _growth(report: Report, counts: Sequence[int]) -> None:
    small, large = counts[0], counts[-1]
    if small == large:
        return
    times = large / small
    for name in ("plan {}", "plan {}, processor", "plan {}, memory"):
        growth = report.series[name.format(large)].median / report.series[name.format(small)].median
        report.facts[f"{name.format('')}: growth for {times:g} times the files"] = rounded(growth, 3)


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("Planning a feed at 100,000 files.", repeats=3)
    flags.add_argument("--files", type=positive, nargs="+", default=[10_000, 100_000], help="how many files")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
