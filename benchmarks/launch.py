"""Seconds from `run()` to the first allreduce of two ranks: lakelens beside horovod.spark.run and TorchDistributor.

Cold is the first run in a new Spark session that has run nothing before; warm is a later run in the same session. The
floor is the import of the framework alone (TensorFlow, or PyTorch), in as many new processes at the same time as there
are ranks. Overhead is the time to the first allreduce less that floor.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import ranks
from .contender import Contender
from .harness import Measure, Report, command, parser, scratch
from .launchers import LAUNCHERS
from .peers import make_peer
from .sparks import MASTER

RANKS = 2
_DRIVER = "lakelens on the driver"
_FLOORS = {"TensorFlow": "import tensorflow", "PyTorch": "import torch.distributed"}
_UNITS = {"s": (" import", "s"), "cold_s": (" cold", "s"), "warm_s": (" warm", "s")}


class Driver:
    """A driver process: one launcher in one Spark session."""

    def __init__(self, launcher: str, folder: str, on_spark: bool) -> None:
        self.name = launcher
        self.launcher = LAUNCHERS[launcher](Path(folder), on_spark)

    def first_allreduce(self) -> dict[str, Any]:
        """Launches two ranks that sum a one."""
        started = time.time()
        reached = self.launcher.run(ranks.first_allreduce, RANKS, library=self.name)
        return {"reduced_s": reached["reduced"] - started}

    def close(self) -> None:
        """Ends the session."""
        self.launcher.close()


def import_floor(python: str | Path, framework: str) -> dict[str, float]:
    """Imports a framework in two new processes at once; gives the seconds until the slower one has it."""
    started = time.perf_counter()
    # Without the interpreter's own end, for which no rank's first sum waits.
    command = [str(python), "-c", f"{_FLOORS[framework]}\nimport os\nos._exit(0)"]
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(RANKS)]
    for process in processes:
        if process.wait():
            raise ValueError(f"{python}: importing {framework} ended with {process.returncode}")
    return {"s": time.perf_counter() - started}


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    report = Report.of("launch", arguments, "repeats", master=MASTER, ranks=RANKS)
    launched = [*arguments.contenders, *([_DRIVER] if "lakelens" in arguments.contenders else [])]
    with scratch(arguments.folder) as (kept, temporary):
        pythons: dict[str, str | Path] = dict.fromkeys(launched, sys.executable)
        measures: dict[str, Measure] = {"TensorFlow": lambda _: import_floor(sys.executable, "TensorFlow")}
        if "TorchDistributor" in pythons:
            pythons["TorchDistributor"] = make_peer("torch", kept)
            measures["PyTorch"] = lambda _: import_floor(pythons["TorchDistributor"], "PyTorch")
        measures |= {name: _cold_and_warm(name, temporary, python) for name, python in pythons.items()}
        report.measure(arguments.repeats, measures, _UNITS)
    for state in ("cold", "warm"):
        for name in launched:
            floor = report.series[f"{'PyTorch' if name == 'TorchDistributor' else 'TensorFlow'} import"].values
            reached = report.series[f"{name} {state}"].values
            overhead = f"{name} {state} overhead"
            report.add(overhead, "s", [one - other for one, other in zip(reached, floor, strict=True)])
            if name in ("lakelens", _DRIVER):
                report.aim(f"{overhead} over the import, s", report.series[overhead].median, at_most=1.0)
        for peer in ("horovod.spark.run", "TorchDistributor"):
            report.compare(f"{peer} {state}", f"lakelens {state}")
    return report


def _cold_and_warm(name: str, temporary: Path, python: str | Path) -> Measure:
    launcher = "lakelens" if name == _DRIVER else name

    def once(repeat: int) -> dict[str, float]:
        place = temporary / f"{name.replace(' ', '-')}-{repeat}"
        with Contender(Driver, place, python=python, launcher=launcher, on_spark=name != _DRIVER) as driver:
            return {state: driver.call("first_allreduce")["reduced_s"] for state in ("cold_s", "warm_s")}

    return once


if __name__ == "__main__":
    command(parser(__doc__, repeats=3, contenders=LAUNCHERS), run)
