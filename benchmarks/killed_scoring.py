"""A scoring job that is killed when half of its rows are computed, and started again.

    python -m benchmarks.killed_scoring [--photographs 600] [--row-ms 50] [--repeats 1] [--json] [--folder KEPT]

Each contender scores the same table of twelve files with the same model, on two slots. The model sleeps for each row
and notes which one it was. At half of the rows all processes of the job get SIGKILL; then new ones start it again.
Measured are the rows that were computed more than once, and the seconds of the second call without the start of its
processes. The contenders: `lakelens.score` with commits of one file; a job with Spark's `predict_batch_udf` that
overwrites its table; Ray Data with its checkpoint, in a separate environment (`peers scoring`), into Parquet files.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import photographs as photos
from .contender import Contender, ContenderError, versions_in
from .harness import Aim, Report, above_zero, interleave, parser, positive, scratch, tell
from .inference import BATCH, SLOTS, BatchUdf, Inputs, OnSpark, build, decode, save_both
from .peers import make_peer

FILES = 12
_LOG = "WATCHED_LOG"


def load_watched(model: str) -> Any:
    """Loads the model that writes down its rows, as a function from JPEGs to probabilities."""
    import keras

    from .slow_model import Watched

    loaded = keras.saving.load_model(model, custom_objects={"Watched": Watched})
    return lambda images: loaded.predict_on_batch(decode(images))


class Prepared(Inputs):
    """Writes the table of several files and the model."""

    def write(self, source: str, table: str, model: str, row_ms: float) -> dict[str, Any]:
        """Writes a table, and the tiny model with a layer that sleeps for each row and notes it."""
        import keras

        from .slow_model import Watched

        self.table(source, f"{table}-whole")
        whole = self.spark.read.format("delta").load(f"{table}-whole")
        whole.repartition(FILES).write.format("delta").save(table)
        tiny = build("tiny")
        seen = Watched(row_ms / 1000, _LOG)(tiny.layers[-1].input)
        save_both(keras.Model(tiny.inputs, tiny.layers[-1](seen)), model)
        return {}


class Score(OnSpark):
    """`lakelens.score`, with commits of a file each."""

    def take(self, table: str) -> dict[str, Any]:
        """Scores a table, or the rest of it."""
        from lakelens import score

        from .slow_model import Watched

        options: dict[str, Any] = {"rows_per_commit": 1, "custom_objects": {"Watched": Watched}}
        score(self.spark, self.checkpoint, table, self.predictions, **options)
        return {}


class PlainUdf(BatchUdf):
    """A job with Spark's `predict_batch_udf` that starts again."""

    loader = staticmethod(load_watched)

    def take(self, table: str) -> dict[str, Any]:
        """Scores a table over what is there."""
        rows = self.predicted(self.spark.read.format("delta").load(table))
        rows.write.format("delta").mode("overwrite").save(self.predictions)
        return {}


class RayData:
    """Ray Data with its checkpoint: it keeps the ids of written rows, and leaves these out when it starts again."""

    def __init__(self, folder: str, model: str) -> None:
        import ray

        self.keras = str(Path(model) / "model.keras")
        self.predictions, self.ids = str(Path(folder) / "predictions"), str(Path(folder) / "ids")
        # One processor for each actor, and as many for reading and writing.
        ray.init(num_cpus=2 * SLOTS, include_dashboard=False)

    def take(self, table: str) -> dict[str, Any]:
        """Scores a table, or the rest of it, file by file."""
        import ray
        from ray.data.checkpoint import CheckpointConfig

        class Predictor:
            def __init__(self, model: str) -> None:
                self.predictor = load_watched(model)

            def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
                return {"path": rows["path"], "probabilities": self.predictor(rows["image"])}

        context = ray.data.DataContext.get_current()
        context.checkpoint_config = CheckpointConfig(id_column="path", checkpoint_path=self.ids)
        files = [str(file) for file in Path(table).glob("*.parquet")]
        # Blocks of a file each: what is written together, as a commit is. By default these files are one block.
        context.target_max_block_size, context.target_min_block_size = Path(files[0]).stat().st_size, 1
        rows = ray.data.read_parquet(files, columns=["path", "image"])
        options = {"batch_size": BATCH, "concurrency": SLOTS, "num_cpus": 1}
        rows.map_batches(Predictor, fn_constructor_args=[self.keras], **options).write_parquet(self.predictions)
        return {}


CONTENDERS: Mapping[str, type] = {"score": Score, "predict_batch_udf": PlainUdf, "ray data": RayData}


def measure(kind: type, place: Path, model: Path, table: Path, rows: int, options: dict[str, Any]) -> dict[str, float]:
    """Starts a job, kills it at half of the rows, and starts it again."""
    from .memory import gone_within, tree

    log = place / "rows.log"
    place.mkdir()
    log.touch()
    target, paths = f"benchmarks.killed_scoring:{kind.__name__}", {"folder": str(place), "model": str(model)}
    options = options | {"environment": {**options["environment"], _LOG: str(log)}}
    with Contender(target, place / "first.log", **options, **paths) as first, ThreadPoolExecutor(1) as pool:
        job = pool.submit(first.call, "take", table=str(table))
        while len(seen(log)) < rows // 2 and not job.done():
            time.sleep(0.05)
        family = tree(first.pid)
        for process in family:
            process.kill()
        if not isinstance(error := job.exception(), ContenderError):
            raise ContenderError(f"{target}: ended before half of its rows were computed") from error
        gone_within(family, 60)
    with Contender(target, place / "second.log", **options, **paths) as second:
        seconds = second.call("take", table=str(table))["seconds"]
    if len(found := seen(log)) != rows:
        raise ContenderError(f"{target}: computed {len(found)} of {rows} rows")
    return {"twice": sum(count > 1 for count in found.values()), "second": seconds}


def seen(log: Path) -> Counter[str]:
    """Counts how often each row was computed."""
    return Counter(log.read_text(encoding="utf-8").split())


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    rows = arguments.photographs
    settings = {name: getattr(arguments, name) for name in ("photographs", "row_ms", "repeats")}
    report = Report("killed_scoring", settings | {"slots": SLOTS, "files": FILES})
    with scratch(arguments.folder) as (kept, temporary), tempfile.TemporaryDirectory(prefix="ray-") as short:
        made = photos.photographs(kept, rows)
        model, table = temporary / "model", temporary / "table"
        log = temporary / "inputs.log"
        with Contender("benchmarks.killed_scoring:Prepared", log, folder=str(temporary / "in")) as inputs:
            tell("writing the table and the model")
            paths = {"source": str(made.folder), "table": str(table), "model": str(model)}
            inputs.call("write", **paths, row_ms=arguments.row_ms)
        options: dict[str, dict[str, Any]] = {name: {"environment": {}} for name in arguments.contenders}
        if "ray data" in options:
            # Ray's sockets need a short path.
            options["ray data"] = {"python": make_peer("scoring", kept), "environment": {"RAY_TMPDIR": short}}
            report.facts["versions"] = versions_in(options["ray data"]["python"], log, ["ray", "tensorflow"])
        measures = {
            name: lambda repeat, name=name: measure(
                CONTENDERS[name], temporary / f"{name}-{repeat}", model, table, rows, options[name]
            )
            for name in options
        }
        for name, values in interleave(arguments.repeats, measures, tell).items():
            report.add(f"{name} rows computed twice", "rows", values["twice"])
            report.add(f"{name} second run", "s", values["second"])
            report.facts[f"{name} needs an id column"] = name == "ray data"
            if name == "score":
                report.aims.append(Aim("score rows computed twice", max(values["twice"]), at_most=-(-rows // FILES)))
    return report


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser("A scoring job that is killed at half of its rows and started again.", repeats=1)
    flags.add_argument("--photographs", type=positive, default=600, help="how many rows")
    flags.add_argument("--row-ms", type=above_zero, default=50.0, help="how long the model sleeps for a row")
    flags.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="which jobs")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
