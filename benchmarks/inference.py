"""Inference: `score` and `predict_udf` beside the UDFs of Spark, MLflow and Daft, Ray Data, and the limit.

The rows are photographs at 299 pixels. Each contender writes path and probabilities of all rows into a
new Delta table on two slots, with Python workers that have loaded the model. Rows/s of the whole call is the count
over its seconds. Steady rows/s is the rate of the rows beyond a quarter: the difference to a call on a table with a
quarter of the rows, so that what a call costs once is left out of it. The models have random weights: MobileNetV2, and
one layer behind an average of the pixels, which leaves decoding and Spark.

The limit is as many processes as slots, with one thread each, a share of the images in memory, and lakelens's decoder
and frozen graph; without Spark, and without a table.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import photographs as photos
from .contender import Contender
from .harness import Measure, Report, command, parser, scratch
from .memory import PeakMemory
from .peers import make_peer, start_ray, versions_in
from .sparks import MASTER, OnSpark, Tables, data_files, stored_columns, stored_files

if TYPE_CHECKING:
    import numpy as np

SIZE = 299
BATCH = 32
SLOTS = 2
STORES = ("jpeg", "raw_rgb")
MODELS = ("mobilenet", "tiny")
_KERAS = "model.keras"
_SHARE = 4
_FEWEST = 500
_COLUMNS = ("image", "format", "height", "width")


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


class Scoring(OnSpark):
    """A contender that scores a table in its own Spark session."""

    def __init__(self, folder: str, model: str) -> None:
        # Partitions of a few MB: larger ones are as uneven as the files, and one slot waits for the other.
        conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "256", "spark.sql.files.maxPartitionBytes": "4m"}
        super().__init__(folder, **conf)
        self.keras, self.checkpoint = str(Path(model) / _KERAS), str(Path(model) / "checkpoint")
        self.predictions = str(self.folder / "predictions")
        self.column = self.probabilities()

    def probabilities(self) -> Any:
        """Gives the column of probabilities, of contenders that score by one."""

    def take(self, table: str) -> dict[str, Any]:
        """Scores a table into a new one."""
        shutil.rmtree(self.predictions, ignore_errors=True)
        started = time.perf_counter()
        self.write(table)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "rows": stored_files(self.predictions)[0]}

    def write(self, table: str) -> None:
        """Scores a table."""
        rows = self.spark.read.format("delta").load(table).select("path", *_COLUMNS)
        scored = rows.select("path", self.column.alias("probabilities"))
        scored.write.format("delta").save(self.predictions)


class Score(Scoring):
    """`lakelens.score`."""

    def __init__(self, folder: str, model: str, engine: str | None = None) -> None:
        super().__init__(folder, model)
        self.engine = engine

    def take(self, table: str) -> dict[str, Any]:
        """Scores a table into a new one, and once more with nothing to do."""
        found = super().take(table)
        started = time.perf_counter()
        self.write(table)
        return {**found, "again_s": time.perf_counter() - started}

    def write(self, table: str) -> None:
        """Scores a table."""
        from lakelens import score

        score(self.spark, self.checkpoint, table, self.predictions, engine=self.engine)


class Udf(Scoring):
    """`lakelens.predict_udf`."""

    def probabilities(self) -> Any:
        """Calls the UDF."""
        from lakelens import predict_udf

        return predict_udf(self.spark, self.checkpoint)(*_COLUMNS).probabilities


class BatchUdf(Scoring):
    """Spark's `predict_batch_udf`."""

    keeps_memory = False

    def probabilities(self) -> Any:
        """Calls the UDF."""
        from pyspark.ml.functions import predict_batch_udf
        from pyspark.sql.types import ArrayType, FloatType

        keras, keeps_memory = self.keras, self.keeps_memory

        def loaded() -> Callable[[Any], np.ndarray]:
            from lakelens import keep_freed_memory

            if keeps_memory:
                keep_freed_memory()
            return load(keras)

        return predict_batch_udf(loaded, return_type=ArrayType(FloatType()), batch_size=BATCH)("image")


class KeepingBatchUdf(BatchUdf):
    """Spark's `predict_batch_udf`, whose workers keep freed memory as those of lakelens do."""

    keeps_memory = True


class MlflowUdf(Scoring):
    """`mlflow.pyfunc.spark_udf` of a model that decodes."""

    def probabilities(self) -> Any:
        """Saves the model with MLflow, and calls the UDF."""
        import mlflow

        place = str(self.folder / "pyfunc")
        mlflow.pyfunc.save_model(place, python_model=_pyfunc(), artifacts={"model": self.keras})
        return mlflow.pyfunc.spark_udf(self.spark, place, result_type="array<float>", env_manager="local")("image")


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
        return {"seconds": seconds, "rows": daft.read_deltalake(self.predictions).count_rows()}


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


class RayData:
    """Ray Data's `map_batches` of a class whose actors load the model in each call; it writes Parquet."""

    def __init__(self, folder: str, model: str) -> None:
        self.keras, self.predictions = str(Path(model) / _KERAS), str(Path(folder) / "predictions")
        start_ray(2 * SLOTS)  # one processor for each actor, and as many for reading and writing

    def take(self, table: str) -> dict[str, Any]:
        """Scores a table into a new folder."""
        import pyarrow.dataset as ds
        import ray

        shutil.rmtree(self.predictions, ignore_errors=True)
        started = time.perf_counter()
        rows = ray.data.read_parquet(data_files(table), columns=["path", "image"])
        options: dict[str, Any] = {"batch_size": BATCH, "concurrency": SLOTS, "num_cpus": 1}
        scored = rows.map_batches(_ray_class(), fn_constructor_args=[self.keras], **options)
        scored.write_parquet(self.predictions)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "rows": ds.dataset(self.predictions, format="parquet").count_rows()}


def _ray_class() -> Any:
    """A class of actors; it travels by value."""

    class Predictor:
        def __init__(self, keras: str) -> None:
            self.predictor = load(keras)

        def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
            return {"path": rows["path"], "probabilities": self.predictor(rows["image"])}

    return Predictor


class Alone:
    """The limit: decodes and predicts a share of the images in one process with one thread."""

    def __init__(self, folder: str, model: str, table: str, share: int) -> None:
        import tensorflow as tf

        from lakelens.etl.images.stored_image import PixelDecoder
        from lakelens.inference.model.compiled import compile_model
        from lakelens.inference.model.predictor import StoredRows
        from lakelens.training.checkpoints.checkpoint import open_checkpoint

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self.rows = StoredRows(*(column[share::SLOTS] for column in stored_columns(table, *_COLUMNS)))
        self.model = compile_model(open_checkpoint(Path(model) / "checkpoint"))
        self.decoder = PixelDecoder()

    def take(self) -> dict[str, Any]:
        """Goes through the images once, batch by batch."""
        import numpy as np

        from lakelens.inference.model.predictor import decode_rows

        pixels = np.zeros((BATCH, SIZE, SIZE, 3), np.uint8)
        for start in range(0, len(self.rows), BATCH):
            rows = self.rows.rows(start, start + BATCH)
            decode_rows(rows, pixels[: len(rows)], self.decoder)
            self.model.function(pixels[: len(rows)])
        return {"rows": len(self.rows)}


class Models:
    """Saves models with random weights, for Keras and as checkpoints of lakelens."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def save(self, name: str) -> None:
        """Saves a model in the folder of its name."""
        from lakelens.training.checkpoints.checkpoint import save_checkpoint

        model, home = build(name), self.folder / name
        home.mkdir()
        model.save(home / _KERAS)
        labels = {str(number): label for number, label in enumerate(photos.CLASS_NAMES)}
        metadata = {"input": {"height": SIZE, "width": SIZE, "channels": 3}, "labels": labels, "epoch": 1}
        saved = save_checkpoint(model, home / "saved", metadata=metadata, state={"epoch": 1})
        (home / "checkpoint").symlink_to(saved.path)


def build(name: str) -> Any:
    """Builds a model with random weights."""
    import keras
    import numpy as np

    from lakelens.inference.model.onnx_engine import check_images

    from .mobile_net import build

    if name == "mobilenet":
        model = build(SIZE, photos.CLASSES)
    else:
        pixels = keras.Input((SIZE, SIZE, 3))
        # Sums over all pixels at once would differ between engines by more than scoring allows.
        parts = keras.layers.AveragePooling2D(23)(keras.layers.Rescaling(1 / 255)(pixels))
        means = keras.layers.GlobalAveragePooling2D()(parts)
        model = keras.Model(pixels, keras.layers.Dense(photos.CLASSES, "softmax")(means))
    # Outputs of random weights hardly differ between images, as those of trained ones do.
    head = keras.Model(model.inputs, model.layers[-1].input)
    features = head.predict_on_batch(check_images((SIZE, SIZE, 3)).astype(np.float32))
    kernel, _ = model.layers[-1].get_weights()
    kernel = kernel / max(float(np.std(features @ kernel, axis=0).max()), 1e-30)
    model.layers[-1].set_weights([kernel, -(features.mean(axis=0) @ kernel)])
    return model


CONTENDERS: Mapping[str, tuple[type[Any], dict[str, str]]] = {
    "score": (Score, {}),
    "score onnxruntime": (Score, {"engine": "onnxruntime"}),
    "predict_udf": (Udf, {}),
    "predict_batch_udf": (BatchUdf, {}),
    "predict_batch_udf keeping memory": (KeepingBatchUdf, {}),
    "mlflow spark_udf": (MlflowUdf, {}),
    "daft": (Daft, {}),
    "ray data": (RayData, {}),
}
_OTHERS = [name for name in CONTENDERS if not name.startswith(("score", "predict_"))]
# Who is compared with whom, with the aims for MobileNetV2 and the tiny model.
_COMPARED: tuple[tuple[str, str, float | None, float | None], ...] = (
    *((f"score{call}", f"{peer}{call}", None, None) for peer in _OTHERS for call in ("", " whole call")),
    ("score", "predict_batch_udf", 1.7, 1.5),
    ("score whole call", "predict_batch_udf whole call", 1.2, 1.2),
    ("predict_udf", "predict_batch_udf", 1.7, None),
    ("predict_batch_udf keeping memory", "predict_batch_udf", None, None),
    ("score", "limit", 0.9, 0.9),
    ("predict_udf", "limit", None, None),
    ("score onnxruntime", "predict_batch_udf", 2.3, None),
)
_UNITS = {
    "steady": ("", "rows/s"),
    "whole": (" whole call", "rows/s"),
    "again_s": (" with nothing to do", "s"),
}


def measure(contender: Contender, whole: Path, quarter: Path) -> Measure:
    """Makes the function that scores both tables once and gives the rates."""

    def once(_: int) -> dict[str, float]:
        contender.call("take", table=str(quarter))  # Spark ends workers that were idle for a minute
        few, all_rows = (contender.call("take", table=str(table)) for table in (quarter, whole))
        beyond, seconds = all_rows["rows"] - few["rows"], all_rows["seconds"] - few["seconds"]
        rates = {"steady": beyond / max(seconds, 1e-3), "whole": all_rows["rows"] / all_rows["seconds"]}
        return rates | ({"again_s": all_rows["again_s"]} if "again_s" in all_rows else {})

    return once


def measure_limit(processes: list[Contender]) -> Measure:
    """Makes the function that lets all processes of the limit go through their images at once."""

    def once(_: int) -> dict[str, float]:
        started = time.perf_counter()
        with ThreadPoolExecutor(len(processes)) as pool:
            rows = sum(found["rows"] for found in pool.map(lambda one: one.call("take"), processes))
        return {"steady": rows / (time.perf_counter() - started)}

    return once


def run(arguments: Any) -> Report:
    """Runs the benchmark."""
    constants = {"master": MASTER, "size": SIZE, "slots": SLOTS, "batch": BATCH}
    report = Report.of("inference", arguments, "photographs", "store", "repeats", **constants)
    with scratch(arguments.folder) as (kept, temporary):
        made = photos.photographs(kept, arguments.photographs)
        few = photos.subset(made, max(1, made.count // _SHARE), temporary / "few")
        whole, quarter, longer = temporary / "whole", temporary / "quarter", temporary / "longer"
        store = arguments.store
        with Contender(Tables, temporary / "writing") as tables:
            for source, table in ((few, quarter), (made, whole)):
                tables.call("ingest", source=str(source.folder), table=str(table), size=SIZE, store=store)
            if arguments.long_rows:
                tables.call("repeat", table=str(whole), target=str(longer), rows=arguments.long_rows)
        with Contender(Models, temporary / "models") as models:
            for name in arguments.models:
                models.call("save", name=name)
        pythons = {}
        if peers := {"daft", "ray data"} & set(arguments.contenders):
            python = make_peer("scoring", kept)
            pythons = dict.fromkeys(peers, python)
            report.facts["environment of Daft and Ray Data"] = versions_in(python, "daft", "ray", "tensorflow")
        for name in arguments.models:
            _one_model(report, arguments, temporary / "models" / name, (whole, quarter, longer), pythons)
    if made.count < _FEWEST:
        report.notes.append(f"{made.count} photographs are too few for a steady rate: it is a difference of two calls")
    return report


def _one_model(
    report: Report, arguments: Any, model: Path, tables: tuple[Path, Path, Path], pythons: Mapping[str, Path]
) -> None:
    """Measures all contenders with one model, those of `pythons` in other environments, and adds ratios and aims."""
    (whole, quarter, longer), name = tables, model.name
    with ExitStack() as stack:
        running: dict[str, Contender] = {}
        for key in arguments.contenders:
            kind, given = CONTENDERS[key]
            place = whole.parent / f"{name}-{key.replace(' ', '-')}"
            python = pythons.get(key, Path(sys.executable))
            one = Contender(kind, place, python=python, model=str(model), **given)
            running[key] = stack.enter_context(one)
            one.call("take", table=str(quarter))  # starts the workers
        limits = []
        for share in range(SLOTS):
            place = whole.parent / f"{name}-limit-{share}"
            one = Contender(Alone, place, model=str(model), table=str(whole), share=share)
            limits.append(stack.enter_context(one))
            one.call("take")
        measures = {key: measure(one, whole, quarter) for key, one in running.items()}
        report.measure(arguments.repeats, measures | {"limit": measure_limit(limits)}, _UNITS, f"{name} ")
        for table in (whole, longer):
            if "score" in running and table.exists():
                with PeakMemory(running["score"].pid) as memory:
                    rows = running["score"].call("take", table=str(table))["rows"]
                report.facts[f"{name} score memory, {rows} rows"] = memory.as_json()
    for over, under, *aims in _COMPARED:
        report.compare(f"{name} {over}", f"{name} {under}", at_least=aims[MODELS.index(name)])
    report.per_core(f"{name} {key}" for key in (*arguments.contenders, "limit"))
    again = report.series.get(f"{name} score with nothing to do")
    if again is not None:
        report.aim(f"{name} score with nothing to do, s", again.median, at_most=0.8)


if __name__ == "__main__":
    flags = parser(__doc__, repeats=3, photographs=1500, contenders=CONTENDERS)
    flags.add_argument("--store", choices=STORES, default=STORES[0], help="how the table stores its images")
    flags.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="which models")
    flags.add_argument("--long-rows", type=int, default=0, help="also measure `score`'s memory on this many rows")
    command(flags, run)
