"""Inference: `score` and `predict_udf` beside the UDFs of Spark, MLflow and Daft, `mapInPandas` by hand, and the limit.

    python -m benchmarks.inference [--models mobilenet tiny] [--photographs 1500] [--store jpeg]
        [--master "local-cluster[2,1,4096]"] [--repeats 3] [--json] [--folder KEPT]

The rows are photographs at 299 pixels. Each contender writes path and probabilities of all rows into a
new Delta table on two slots, with Python workers that have loaded the model. Rows/s of the whole call is the count
over its seconds. Steady rows/s is the rate of the rows beyond a quarter: the difference to a call on a table with a
quarter of the rows, so that what a call costs once is left out of it. The models have random weights: MobileNetV2, and
one layer behind an average of the pixels, which leaves decoding and Spark.

A new session's first call, with the start of the workers and the load of the model, is on the quarter. `--long-rows`
adds the peak memory of `score` on a longer table, to compare with that on all rows.

The limit is as many processes as slots, with one thread each, a share of the images in memory, and lakelens's decoder
and frozen graph; without Spark, and without a table. It also measures decoding and the model alone.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import photographs as photos
from .contender import Contender, versions_in
from .harness import Aim, Report, interleave, parser, positive, scratch, tell
from .peers import make_peer

if TYPE_CHECKING:
    import numpy as np

SIZE = 299
BATCH = 32
SLOTS = 2
MASTER = f"local[{SLOTS}]"
STORES = ("jpeg", "raw_rgb")
MODELS = ("mobilenet", "tiny")
_CLASSES = 8
_KERAS = "model.keras"
_SHARE = 4
_ARRAY = "array<float>"
_AIMS = {"mobilenet": 1.4, "tiny": 1.5}
_FEWEST = 500
_LONG = "long"


def decode(images: Any) -> np.ndarray:
    """Decodes images as a user would: Pillow, one after the other, uint8 [rows, height, width, channels]."""
    import io

    import numpy as np
    from PIL import Image

    def pixels(image: bytes) -> np.ndarray:
        if len(image) == SIZE * SIZE * 3:  # stored as pixels
            return np.frombuffer(image, np.uint8).reshape(SIZE, SIZE, 3)
        return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))

    return np.stack([pixels(image) for image in images])


def load(model: str) -> Callable[[Any], np.ndarray]:
    """Loads a Keras model as a function from stored images to probabilities."""
    import keras

    loaded = keras.saving.load_model(model)
    return lambda images: loaded.predict_on_batch(decode(images))


class OnSpark:
    """A contender that scores a table in its own Spark session."""

    def __init__(self, folder: str, model: str, master: str = MASTER) -> None:
        from .sparks import session

        settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "256"}
        self.spark = session(Path(folder), master, **settings)
        self.keras, self.checkpoint = str(Path(model) / _KERAS), str(Path(model) / "checkpoint")
        self.predictions = str(Path(folder) / "predictions")
        self.engine = ""
        self.prepare()

    def prepare(self) -> None:
        """Makes what all calls use."""

    def take(self, table: str) -> dict[str, Any]:
        """Scores a table into a new one, and where that is its way, once more with nothing to do."""
        from .sparks import stored_files

        shutil.rmtree(self.predictions, ignore_errors=True)
        started = time.perf_counter()
        self.write(table)
        seconds = time.perf_counter() - started
        _, rows, _ = stored_files(self.predictions)
        return {"seconds": seconds, "rows": rows, "engine": self.engine, **self.again(table)}

    def again(self, table: str) -> dict[str, float]:
        """Measures a repeat; of a job that starts again it is the same."""
        return {}

    def write(self, table: str) -> None:
        """Scores a table."""
        stored = self.spark.read.format("delta").load(table)
        rows = self.predicted(stored.select("path", "image", "format", "height", "width"))
        rows.write.format("delta").save(self.predictions)

    def predicted(self, rows: Any) -> Any:
        """Adds the probabilities to rows."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


class Score(OnSpark):
    """`lakelens.score`."""

    option: str | None = None

    def write(self, table: str) -> None:
        """Scores a table."""
        from lakelens import score

        self.engine = score(self.spark, self.checkpoint, table, self.predictions, engine=self.option).engine or (
            self.engine
        )

    def again(self, table: str) -> dict[str, float]:
        """Measures a repeat with nothing to do."""
        started = time.perf_counter()
        self.write(table)
        return {"again_s": time.perf_counter() - started}


class ScoreOnnx(Score):
    """`lakelens.score` in ONNX Runtime."""

    option = "onnxruntime"


class Udf(OnSpark):
    """`lakelens.predict_udf`."""

    def prepare(self) -> None:
        """Makes the UDF."""
        from lakelens import predict_udf

        self.udf = predict_udf(self.spark, self.checkpoint)

    def predicted(self, rows: Any) -> Any:
        """Adds the probabilities to rows."""
        return rows.select("path", self.udf("image", "format", "height", "width").probabilities.alias("probabilities"))


class BatchUdf(OnSpark):
    """Spark's `predict_batch_udf`."""

    loader = staticmethod(load)

    def prepare(self) -> None:
        """Makes the UDF."""
        from pyspark.ml.functions import predict_batch_udf
        from pyspark.sql.types import ArrayType, FloatType

        keras, loader = self.keras, self.loader
        self.udf = predict_batch_udf(lambda: loader(keras), return_type=ArrayType(FloatType()), batch_size=BATCH)

    def predicted(self, rows: Any) -> Any:
        """Adds the probabilities to rows."""
        return rows.select("path", self.udf("image").alias("probabilities"))


class MlflowUdf(OnSpark):
    """`mlflow.pyfunc.spark_udf` of a model that decodes."""

    def prepare(self) -> None:
        """Saves the model with MLflow, and makes the UDF."""
        import mlflow

        place = str(Path(self.predictions).with_name("pyfunc"))
        mlflow.pyfunc.save_model(place, python_model=_pyfunc(), artifacts={"model": self.keras})
        self.udf = mlflow.pyfunc.spark_udf(self.spark, place, result_type=_ARRAY, env_manager="local")

    def predicted(self, rows: Any) -> Any:
        """Adds the probabilities to rows."""
        return rows.select("path", self.udf("image").alias("probabilities"))


def _pyfunc() -> Any:
    """A model of MLflow's whose class travels with it."""
    import mlflow

    class Decoding(mlflow.pyfunc.PythonModel):
        def load_context(self, context: Any) -> None:
            self.predictor = load(context.artifacts["model"])

        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            import numpy as np

            images = list(model_input.iloc[:, 0])
            starts = range(0, len(images), BATCH)
            return np.concatenate([self.predictor(images[start : start + BATCH]) for start in starts])

    return Decoding()


class MapInPandas(OnSpark):
    """What users write by hand: the model loaded in each task."""

    def predicted(self, rows: Any) -> Any:
        """Adds the probabilities to rows."""
        keras = self.keras

        def score(frames: Iterator[Any]) -> Iterator[Any]:
            import pandas as pd

            predictor = load(keras)
            for frame in frames:
                for start in range(0, len(frame), BATCH):
                    part = frame.iloc[start : start + BATCH]
                    yield pd.DataFrame({"path": part["path"], "probabilities": list(predictor(part["image"]))})

        return rows.select("path", "image").mapInPandas(score, f"path string, probabilities {_ARRAY}")


class Daft:
    """Daft's batch UDF, a class whose processes load the model in each query."""

    def __init__(self, folder: str, model: str) -> None:
        self.keras, self.predictions = str(Path(model) / _KERAS), str(Path(folder) / "predictions")

    def take(self, table: str) -> dict[str, Any]:
        """Scores a table into a new one."""
        import daft

        shutil.rmtree(self.predictions, ignore_errors=True)
        started = time.perf_counter()
        rows = daft.read_deltalake(table).select("path", "image")
        predictor = _daft_class()(self.keras)
        scored = rows.select("path", predictor(rows["image"]).alias("probabilities"))
        scored.write_deltalake(self.predictions)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "rows": daft.read_deltalake(self.predictions).count_rows(), "engine": ""}


def _daft_class() -> Any:
    """A class of UDFs, in as many processes as slots."""
    import daft

    @daft.cls(use_process=True, max_concurrency=SLOTS)
    class Predictor:
        def __init__(self, keras: str) -> None:
            self.predictor = load(keras)

        @daft.method.batch(return_dtype=daft.DataType.list(daft.DataType.float32()), batch_size=BATCH)
        def __call__(self, images: Any) -> Any:
            return list(self.predictor(images.to_pylist()))

    return Predictor


class Alone:
    """A share of the images in one process with one thread: decoding, the model, or both."""

    def __init__(self, model: str, table: str, share: int) -> None:
        import pyarrow.dataset as ds
        import tensorflow as tf

        from lakelens.etl.images.stored_image import PixelDecoder
        from lakelens.inference.model.compiled import compile_model
        from lakelens.inference.model.decoding import StoredRows
        from lakelens.table import Table
        from lakelens.training.checkpoints.checkpoint import open_checkpoint

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        snapshot = Table.of(table).snapshot()
        places = [snapshot.file_location(i) for i in range(len(snapshot.files))]
        columns = ["image", "format", "height", "width"]
        stored = ds.dataset(places, format="parquet").to_table(columns=columns)
        self.rows = StoredRows(*(stored[column].to_pylist()[share::SLOTS] for column in columns))
        self.model = compile_model(open_checkpoint(Path(model) / "checkpoint"))
        self.decoder = PixelDecoder()

    def take(self, decodes: bool, predicts: bool) -> dict[str, Any]:
        """Goes through the images once, batch by batch."""
        import numpy as np

        from lakelens.inference.model.decoding import decode_rows

        pixels = np.zeros((BATCH, SIZE, SIZE, 3), np.uint8)
        for start in range(0, len(self.rows), BATCH):
            rows = self.rows.rows(start, start + BATCH)
            if decodes:
                decode_rows(rows, pixels[: len(rows)], self.decoder)
            if predicts:
                self.model.function(pixels[: len(rows)])
        return {"rows": len(self.rows), "engine": self.model.engine}


class Inputs:
    """Writes the tables and the models."""

    def __init__(self, folder: str) -> None:
        from .sparks import session

        self.spark = session(Path(folder), MASTER)

    def table(self, source: str, table: str, store: str = STORES[0]) -> dict[str, Any]:
        """Ingests photographs."""
        from lakelens import ImageTable

        ImageTable(self.spark, table).ingest(source, layout="class_folders", size=SIZE, store=store)
        return {}

    def repeated(self, table: str, longer: str, rows: int) -> dict[str, Any]:
        """Writes the rows of a table again and again under other paths, as a table of so many rows."""
        from pyspark.sql import functions

        kept = self.spark.read.format("delta").load(table)
        times = self.spark.range(-(-rows // kept.count()))
        path = functions.concat("path", functions.lit("?"), functions.col("id").cast("string"))
        longest = kept.crossJoin(times).withColumn("path", path).drop("id").limit(rows)
        longest.write.format("delta").option("maxRecordsPerFile", 1000).save(longer)
        return {}

    def model(self, name: str, folder: str) -> dict[str, Any]:
        """Saves a model with random weights."""
        save_both(build(name), folder)
        return {}

    def close(self) -> None:
        """Ends the session."""
        self.spark.stop()


def save_both(model: Any, folder: str) -> None:
    """Saves a model for Keras and as a checkpoint of lakelens."""
    from lakelens.training.checkpoints.checkpoint import save_checkpoint

    Path(folder).mkdir(parents=True)
    model.save(Path(folder) / _KERAS)
    labels = {str(number): photos.class_name(number) for number in range(_CLASSES)}
    metadata = {"input": {"height": SIZE, "width": SIZE, "channels": 3}, "labels": labels, "epoch": 1}
    saved = save_checkpoint(model, Path(folder) / "saved", metadata=metadata, state={"epoch": 1})
    (Path(folder) / "checkpoint").symlink_to(saved.path)


def build(name: str) -> Any:
    """Builds a model with random weights."""
    import keras
    import numpy as np

    from lakelens.inference.model.frozen import check_images

    from .mobile_net import build

    if name == "mobilenet":
        model = build(SIZE, _CLASSES)
    else:
        pixels = keras.Input((SIZE, SIZE, 3))
        # Sums over all pixels at once would differ between engines by more than scoring allows.
        parts = keras.layers.AveragePooling2D(23)(keras.layers.Rescaling(1 / 255)(pixels))
        means = keras.layers.GlobalAveragePooling2D()(parts)
        model = keras.Model(pixels, keras.layers.Dense(_CLASSES, "softmax")(means))
    # Outputs of random weights hardly differ between images, as those of trained ones do.
    head = keras.Model(model.inputs, model.layers[-1].input)
    features = head.predict_on_batch(check_images((SIZE, SIZE, 3)).astype(np.float32))
    kernel, _ = model.layers[-1].get_weights()
    kernel = kernel / max(float(np.std(features @ kernel, axis=0).max()), 1e-30)
    model.layers[-1].set_weights([kernel, -(features.mean(axis=0) @ kernel)])
    return model


CONTENDERS: Mapping[str, type] = {
    "score": Score,
    "score onnxruntime": ScoreOnnx,
    "predict_udf": Udf,
    "predict_batch_udf": BatchUdf,
    "mlflow spark_udf": MlflowUdf,
    "mapInPandas": MapInPandas,
    "daft": Daft,
}
LIMITS: Mapping[str, dict[str, bool]] = {
    "limit": {"decodes": True, "predicts": True},
    "decoding alone": {"decodes": True, "predicts": False},
    "model alone": {"decodes": False, "predicts": True},
}


def measure(contender: Contender, whole: Path, quarter: Path, engines: dict[str, str], name: str) -> Any:
    """Makes the function that scores both tables once and gives the rates."""

    def once(_: int) -> dict[str, float]:
        contender.call("take", table=str(quarter))  # Spark ends workers that were idle for a minute
        few, all_rows = contender.call("take", table=str(quarter)), contender.call("take", table=str(whole))
        engines[name] = all_rows["engine"]
        beyond, seconds = all_rows["rows"] - few["rows"], all_rows["seconds"] - few["seconds"]
        rates = {"steady": beyond / max(seconds, 1e-3), "whole": all_rows["rows"] / all_rows["seconds"]}
        return rates | ({"again_s": all_rows["again_s"]} if "again_s" in all_rows else {})

    return once


def measure_limit(processes: list[Contender], parts: dict[str, bool]) -> Any:
    """Makes the function that lets all processes of a limit go through their images at once."""

    def once(_: int) -> dict[str, float]:
        started = time.perf_counter()
        with ThreadPoolExecutor(len(processes)) as pool:
            rows = sum(found["rows"] for found in pool.map(lambda one: one.call("take", **parts), processes))
        return {"steady": rows / (time.perf_counter() - started)}

    return once


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    count = arguments.photographs
    report = Report(
        "inference",
        {
            **{name: getattr(arguments, name) for name in ("photographs", "store", "master", "repeats")},
            **{"size": SIZE, "slots": SLOTS, "batch": BATCH},
        },
    )
    with scratch(arguments.folder) as (kept, temporary):
        made = photos.photographs(kept, count, classes=_CLASSES)
        few = photos.subset(made, max(1, count // _SHARE), temporary / "few")
        tables = temporary / "whole", temporary / "quarter"
        with Contender("benchmarks.inference:Inputs", temporary / "inputs.log", folder=str(temporary / "in")) as inputs:
            for source, table in zip((made, few), tables, strict=True):
                tell(f"writing {table.name}")
                inputs.call("table", source=str(source.folder), table=str(table), store=arguments.store)
            if arguments.long_rows:
                tell(f"writing {_LONG}")
                inputs.call("repeated", table=str(tables[0]), longer=str(temporary / _LONG), rows=arguments.long_rows)
            for name in arguments.models:
                inputs.call("model", name=name, folder=str(temporary / name))
        pythons = {}
        if "daft" in arguments.contenders:
            pythons["daft"] = make_peer("scoring", kept)
            versions = versions_in(pythons["daft"], temporary / "log", ["daft", "tensorflow"])
            report.facts["environment with Daft"] = versions
        for name in arguments.models:
            _one_model(report, arguments, name, temporary, tables, pythons)
            _compare(report, name)
    if count < _FEWEST:
        report.notes.append(f"{count} photographs are too few for a steady rate: it is a difference of two calls")
    return report


def _one_model(
    report: Report,
    arguments: Any,
    model: str,
    temporary: Path,
    tables: tuple[Path, Path],
    pythons: Mapping[str, Path],
) -> None:
    """Measures all contenders with one model, those of `pythons` in other environments."""
    from .memory import PeakMemory  # needs psutil, which Daft's environment does not have

    whole, quarter = tables
    running: dict[str, Contender] = {}
    limits: list[Contender] = []
    engines: dict[str, str] = {}
    module, folder = "benchmarks.inference", str(temporary / model)
    try:
        for name in arguments.contenders:
            tell(f"starting {name} for {model}")
            place = temporary / f"{model}-{name.replace(' ', '-')}"
            place.mkdir()
            target = f"{module}:{CONTENDERS[name].__name__}"
            python = pythons.get(name, Path(sys.executable))
            given = {"master": arguments.master} if issubclass(CONTENDERS[name], OnSpark) else {}
            running[name] = Contender(target, place / "log", python=python, folder=str(place), model=folder, **given)
            cold = running[name].call("take", table=str(quarter))
            report.facts[f"{model} {name} first call in a new session, s"] = round(cold["seconds"], 1)
        for share in range(SLOTS):
            log = temporary / f"{model}-limit-{share}.log"
            limits.append(Contender(f"{module}:Alone", log, model=folder, table=str(whole), share=share))
            limits[-1].call("take", **LIMITS["limit"])
        measures = {name: measure(one, whole, quarter, engines, name) for name, one in running.items()}
        measures |= {name: measure_limit(limits, parts) for name, parts in LIMITS.items()}
        for name, values in interleave(arguments.repeats, measures, tell).items():
            report.add(f"{model} {name}", "rows/s", values["steady"])
            if "whole" in values:
                report.add(f"{model} {name} whole call", "rows/s", values["whole"])
            if "again_s" in values:
                report.add(f"{model} {name} with nothing to do", "s", values["again_s"])
        for table in (whole, whole.with_name(_LONG)):
            if "score" in running and table.exists():
                with PeakMemory(running["score"].pid) as memory:
                    rows = running["score"].call("take", table=str(table))["rows"]
                report.facts[f"{model} score memory, {rows} rows"] = memory.as_json()
        report.facts[f"{model} engine"] = engines.get("score")
    finally:
        for contender in (*running.values(), *limits):
            contender.close()


def _compare(report: Report, model: str) -> None:
    """Adds the ratios of what was measured, and the aims."""
    ours, again = f"{model} score", f"{model} score with nothing to do"
    for name in CONTENDERS:
        theirs, is_peer = f"{model} {name}", name == "predict_batch_udf"
        if ours in report.series and theirs in report.series and theirs != ours:
            report.compare(ours, theirs, at_least=_AIMS[model] if is_peer else None)
            report.compare(f"{ours} whole call", f"{theirs} whole call", at_least=1.2 if is_peer else None)
    for name in (ours, f"{model} predict_udf"):
        if name in report.series:
            report.compare(name, f"{model} limit", at_least=0.9 if name == ours else None)
    engine, peer = f"{model} score onnxruntime", f"{model} predict_batch_udf"
    if engine in report.series and peer in report.series:
        report.compare(engine, peer, at_least=1.65 if model == "mobilenet" else None)
    if again in report.series:
        report.aims.append(Aim(f"{again}, s", report.series[again].median, at_most=1.0))


def main(argv: list[str] | None = None) -> int:
    """Runs the command."""
    flags = parser(
        "Inference beside the UDFs of Spark, MLflow and Daft, a hand-written mapInPandas and the limit.", repeats=3
    )
    flags.add_argument("--photographs", type=positive, default=1500, help="how many rows")
    flags.add_argument("--store", choices=STORES, default=STORES[0], help="how the table stores its images")
    flags.add_argument("--master", default=MASTER, help=f"Spark's master, with {SLOTS} slots")
    flags.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="which models")
    flags.add_argument(
        "--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="who takes part"
    )
    flags.add_argument("--long-rows", type=int, default=0, help="measure the memory of `score` on so many rows, too")
    arguments = flags.parse_args(argv)
    run(arguments).show(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
