"""Seconds from `run()` to the first allreduce of two ranks: lakelens beside horovod.spark.run and TorchDistributor.

    python -m benchmarks.launch --folder KEPT [--master local-cluster[2,1,1024]] [--repeats 3] [--json]

PyTorch gets its own environment below KEPT, made once (6.7 GB, some minutes); without --folder TorchDistributor is
left out.

Cold is the first run in a new Spark session that has run nothing before; warm is a later run in the same session. The
floor is the import of the framework alone (TensorFlow, or PyTorch), in as many new processes at the same time as there
are ranks. Overhead is the time to the first allreduce less that floor.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import ranks
from .contender import Contender
from .harness import Aim, Report, interleave, parser, scratch, tell
from .launchers import LAUNCHERS
from .peers import make_peer

RANKS = 2
_DRIVER = "lakelens on the driver"
_IMPORTS = {
    "TensorFlow": "import tensorflow",
    "Horovod": "import horovod.tensorflow",
    "PyTorch": "import torch.distributed",
}


class Driver:
    """A driver process: one launcher in one Spark session."""

    def __init__(self, launcher: str, folder: str, master: str | None) -> None:
        self.name = launcher
        self.launcher = LAUNCHERS[launcher](Path(folder), master)

    def first_allreduce(self) -> dict[str, Any]:
        """Launches two ranks that sum a one."""
        started = time.time()
        reached = self.launcher.run(ranks.first_allreduce, RANKS, library=self.name)
        returned = time.time()
        return {**{key: value - started for key, value in reached.items()}, "returned": returned - started}

    def close(self) -> None:
        """Ends the session."""
        self.launcher.close()


def import_floor(python: str | Path, statement: str) -> dict[str, float]:
    """Runs an import in two new processes at once; gives the seconds until the slower one has it."""
    started = time.perf_counter()
    # Without the interpreter's own end, for which no rank's first sum waits.
    command = [str(python), "-c", f"{statement}\nimport os\nos._exit(0)"]
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(RANKS)]
    for process in processes:
        if process.wait():
            raise ValueError(f"{python}: {statement} ended with {process.returncode}")
    return {"s": time.perf_counter() - started}


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    report = Report("launch", {"ranks": RANKS, "master": arguments.master, "repeats": arguments.repeats})
    torch = None
    if "TorchDistributor" in arguments.contenders and arguments.folder is not None:
        torch = make_peer("torch", arguments.folder)
    if "TorchDistributor" in arguments.contenders and torch is None:
        report.notes.append("TorchDistributor was left out: it needs --folder for its environment")
    with scratch(arguments.folder) as (_, temporary):
        measures: dict[str, Callable[[int], dict[str, float]]] = {}
        for name in arguments.contenders:
            if name != "TorchDistributor" or torch is not None:
                measures[name] = _cold_and_warm(name, temporary, arguments.master, torch)
        if "lakelens" in measures:
            measures[_DRIVER] = _cold_and_warm(_DRIVER, temporary, None, torch)
        measures["TensorFlow"] = lambda _: import_floor(sys.executable, _IMPORTS["TensorFlow"])
        measures["Horovod"] = lambda _: import_floor(sys.executable, _IMPORTS["Horovod"])
        if torch is not None:
            measures["PyTorch"] = lambda _: import_floor(torch, _IMPORTS["PyTorch"])
        found = interleave(arguments.repeats, measures, tell)
    _fill(report, found)
    return report


def _cold_and_warm(
    name: str, temporary: Path, master: str | None, torch: Path | None
) -> Callable[[int], dict[str, float]]:
    launcher = "lakelens" if name == _DRIVER else name
    python = torch if launcher == "TorchDistributor" and torch is not None else sys.executable

    def once(repeat: int) -> dict[str, float]:
        place = temporary / f"{name.replace(' ', '-')}-{repeat}"
        place.mkdir()
        target, log = "benchmarks.launch:Driver", place / "log"
        with Contender(target, log, python=python, launcher=launcher, folder=str(place), master=master) as driver:
            cold = driver.call("first_allreduce")
            warm = driver.call("first_allreduce")
        return {
            "cold_s": cold["reduced"],
            "warm_s": warm["reduced"],
            "warm_entered_s": warm["entered"],
            "warm_imported_s": warm["imported"],
            "warm_joined_s": warm["joined"],
            "warm_returned_s": warm["returned"],
        }

    return once


def _fill(report: Report, found: dict[str, dict[str, list[float]]]) -> None:
    for name, values in found.items():
        for key, series in values.items():
            label = {"s": "import", "cold_s": "cold", "warm_s": "warm"}.get(
                key, key.removesuffix("_s").replace("_", " ")
            )
            report.add(f"{name} {label}", "s", series)
    for name, values in found.items():
        floor = "PyTorch" if name == "TorchDistributor" else "TensorFlow"
        if "warm_s" not in values or floor not in found:
            continue
        for state in ("cold", "warm"):
            overhead = [a - b for a, b in zip(values[f"{state}_s"], found[floor]["s"], strict=True)]
            report.add(f"{name} {state} overhead", "s", overhead)
            if name in ("lakelens", _DRIVER):
                median = report.series[f"{name} {state} overhead"].median
                report.aims.append(Aim(f"{name} {state} overhead over the import, s", median, at_most=1.0))
    for peer in ("horovod.spark.run", "TorchDistributor"):
        for state in ("cold", "warm"):
            if peer in found and "lakelens" in found:
                report.compare(f"{peer} {state}", f"lakelens {state}")


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("Seconds from run() to the first allreduce.", repeats=3)
    flags.add_argument("--master", default="local[2]", help="Spark master of every launcher")
    flags.add_argument(
        "--contenders", nargs="+", choices=list(LAUNCHERS), default=list(LAUNCHERS), help="who takes part"
    )
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
