"""An ingest and a scoring on a Spark Connect session, next to a classic session of the same cores.

    python -m benchmarks.connect [--photographs 2000] [--repeats 2] [--json] [--folder KEPT]

Both sessions are `local[2]`; the Connect session's driver is a server of its own on this machine. Each contender
ingests the photographs at 96 x 96 pixels into a new table, ingests them again (nothing is new), and scores the table
with a small model of random weights. The first scoring of a session imports TensorFlow in Spark's workers; so each
contender scores a table of 64 photographs before.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender
from .harness import Report, interleave, parser, positive, scratch, tell
from .sparks import DRIVER_MEMORY, session

SIDE = 96
_FEW = 64
_STEPS = ("ingest", "nothing new", "score")


class Session:
    """A session of one kind, and the steps on it."""

    def __init__(self, folder: str, kind: str) -> None:
        self.folder = Path(folder)
        self.spark = _connected(self.folder) if kind == "connect" else session(self.folder)

    def run(self, source: str, name: str, model: str) -> dict[str, float]:
        """Gives the seconds of each step on a new table."""
        from lakelens import ImageTable, score

        table, predictions = (str(self.folder / f"{kind}-{name}") for kind in ("table", "predictions"))
        seconds = {}
        for step in _STEPS:
            started = time.perf_counter()
            if step == "score":
                score(self.spark, model, table, predictions)
            else:
                ImageTable(self.spark, table).ingest(source, size=SIDE)
            seconds[step] = time.perf_counter() - started
        return seconds

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


def _connected(folder: Path) -> Any:
    """Starts Spark's own Connect server for `local[2]`, and a session on it."""
    from pyspark.sql import SparkSession

    from lakelens.spark.java import find_java
    from lakelens.spark.session import delta_package

    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.jars.packages": delta_package(),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "spark"),
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.remote("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class Model:
    """Writes the checkpoint that both score with, in a process of its own."""

    def save(self, folder: str) -> dict[str, Any]:
        """Gives its path."""
        import keras

        from lakelens.training.checkpoints.checkpoint import save_checkpoint

        model = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(16, 5, 4, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(8, "softmax"),
            ]
        )
        metadata = {
            "input": {"height": SIDE, "width": SIDE, "channels": 3},
            "epoch": 1,
            "labels": {str(number): f"class{number}" for number in range(8)},
        }
        saved = save_checkpoint(model, Path(folder), metadata=metadata, state={"epoch": 1})
        return {"path": str(saved.path)}


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    report = Report("connect", {"photographs": arguments.photographs, "repeats": arguments.repeats, "side": SIDE})
    with scratch(arguments.folder) as (kept, temporary):
        source = photos.photographs(kept, arguments.photographs).folder
        few = photos.photographs(kept, _FEW).folder
        with Contender("benchmarks.connect:Model", temporary / "model.log") as maker:
            model = maker.call("save", folder=str(temporary / "checkpoints"))["path"]
        contenders = {}
        try:
            for kind in ("classic", "connect"):
                folder = temporary / kind
                folder.mkdir()
                one = Contender("benchmarks.connect:Session", folder / "log", folder=str(folder), kind=kind)
                contenders[kind] = one
                one.call("run", source=str(few), name="few", model=model)
            measured = interleave(
                arguments.repeats,
                {
                    kind: lambda repeat, one=one: one.call("run", source=str(source), name=str(repeat), model=model)
                    for kind, one in contenders.items()
                },
                tell,
            )
        finally:
            for one in contenders.values():
                one.close()
        for step in _STEPS:
            for kind, values in measured.items():
                report.add(f"{kind}: {step}", "s", values[step])
            report.compare(f"connect: {step}", f"classic: {step}")
    return report


def main(argv: list[str] | None = None) -> int:
    """Parses the flags, runs, prints."""
    flags = parser("Ingest and scoring on Spark Connect next to a classic session.", repeats=2)
    flags.add_argument("--photographs", type=positive, default=2000, help="how many")
    arguments = flags.parse_args(argv)
    report = run(arguments)
    report.show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
