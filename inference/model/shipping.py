"""Sends a checkpoint to the Python workers of every executor, loads it once per process, and feeds it Arrow batches."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import secrets
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ...errors import CheckpointError, ScoringFailedError
from ...freed_memory import give_back, keep_freed_memory
from ...progress import image_counter
from ...spark.jvm import is_verbose
from ...spark.port import TaskCounter, TaskNames, is_local, ship_file, temporary_folder
from ...spark.workers import check_workers
from ...training.checkpoints.checkpoint import Checkpoint, open_checkpoint
from ...training.checkpoints.manifests import TORCH
from ...training.checkpoints.references import ModelRef
from ...training.rank import lazy_imports
from ...training.runner.placement.gpus import visible_to_task
from ...training.segments.backend import FRAMEWORKS
from ...training.tasks.registry import task_of
from ...training.tasks.task import Task
from .compiled import convert_model
from .predictor import Predictions, Predictor, StoredRows, build_predictor
from .user_code import UserCode

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import SparkSession

# The columns that only the predictor needs.
_STORED = ("image", "format", "height", "width", "source")


def prediction_ddl(task: Task | type[Task]) -> str:
    """Gives the columns of a prediction, as in SQL: those of the task, then `error`."""
    return ", ".join(f"{name} {kind}" for name, kind in {**task.prediction_columns, "error": "STRING"}.items())


def stored_rows(columns: Mapping[str, pa.Array]) -> StoredRows:
    """Takes the columns of `_STORED` of an Arrow batch; all but `image` may be absent."""
    formats, heights, widths, sources = (columns[name].to_pylist() if name in columns else None for name in _STORED[1:])
    return StoredRows(columns["image"].to_pylist(), formats, heights, widths, sources)


def predict_arrow(predictor: Predictor, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replaces the columns of the stored image by those of the prediction; the other columns stay."""
    # Memory: two Arrow batches with a second copy of their stored images, two decoded pieces, and their results.
    import pyarrow as pa

    taken: deque[pa.RecordBatch] = deque()

    def stored() -> Iterator[StoredRows]:
        for batch in batches:
            if batch.num_rows:
                taken.append(batch)
                yield stored_rows({name: batch.column(i) for i, name in enumerate(batch.schema.names)})

    start = 0
    # The predictor takes the next batch while it still works on the last rows of the one before.
    for piece in predictor.stream(stored()):
        batch = taken[0]
        passed = {
            name: batch.column(i).slice(start, len(piece))
            for i, name in enumerate(batch.schema.names)
            if name not in _STORED
        }
        yield pa.RecordBatch.from_pydict(passed | prediction_arrays(predictor, piece))
        start += len(piece)
        if start == batch.num_rows:
            taken.popleft()
            start = 0


def prediction_arrays(predictor: Predictor, predictions: Predictions) -> dict[str, pa.Array]:
    """Writes predictions as Arrow columns; a row with an error has null in all of them but `error`."""
    import pyarrow as pa

    height, width, _ = predictor.input_shape
    arrays = predictor.task.prediction_arrays(
        predictions.answers, predictions.valid, predictions.frames.tolist(), (height, width)
    )
    return {**arrays, "error": pa.array(predictions.errors, pa.string())}


def predict_pandas(predictor: Predictor, batches: Iterable[Any]) -> Iterator[pd.DataFrame]:
    """Predicts for the batches that a pandas UDF gets: a Series of images, or also format, height, width and source."""
    import pandas as pd

    for piece in predictor.stream(_rows_of_series(batch) for batch in batches):
        arrays = prediction_arrays(predictor, piece)
        yield pd.DataFrame({name: _series(array) for name, array in arrays.items()})


def _series(array: pa.Array) -> pd.Series[Any]:
    """Makes a Series of Python objects; a list of numbers becomes an array, which Spark converts faster than a list."""
    import pandas as pd
    import pyarrow as pa

    is_numbers = pa.types.is_list(array.type) and pa.types.is_floating(array.type.value_type)
    values = array.to_pandas() if is_numbers else array.to_pylist()
    return pd.Series(values, dtype=object)


def _rows_of_series(batch: Any) -> StoredRows:
    columns = batch if isinstance(batch, tuple) else (batch,)
    images = [_whole(value) for value in columns[0]]
    formats, heights, widths = (
        [_whole(value) for value in columns[place]] if len(columns) > place else None for place in (1, 2, 3)
    )
    sources = None
    if len(columns) == len(_STORED):  # Spark gives a struct as a DataFrame, in which null has null fields
        records = columns[-1].to_dict("records")
        sources = [{name: _whole(value) for name, value in record.items()} for record in records]
    return StoredRows(images, formats, heights, widths, sources)


def _whole(value: Any) -> Any:
    """Pandas writes a null as NaN, and then the column's whole numbers as floats."""
    if not isinstance(value, float):
        return value
    return None if value != value else int(value)


# Equal checkpoints make equal archives, so that sending one twice gives the same file.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
# Packages that prediction tasks need on the executors.
_IMPORTED = ("numpy", "pyarrow", "pandas", "PIL", "pydantic")


@dataclass(frozen=True)
class ShippedModel:
    """A checkpoint that every executor can fetch; small and picklable, and equal in all tasks of a scoring."""

    archive: str  # Name of the archive among the session's files
    digest: str  # The checkpoint's digest, which a worker compares with its copy
    ddl: str  # The columns of a prediction, as in SQL
    batch_bytes: int  # Most bytes of one batch of float32 input
    # What the model needs in addition to Keras; each task has another object
    code: UserCode = field(default_factory=UserCode, compare=False)
    # Digest of `code` on the driver. Names of user classes are not enough: a corrected class keeps its name
    code_digest: str = ""
    is_quiet: bool = False  # Whether what TensorFlow writes to stderr while it starts is dropped
    engine: str | None = None  # `ONNXRUNTIME`, whose graph is in the archive; None for the model's own framework

    def predictor(self) -> Predictor:
        """Loads the model, or returns it if this process has loaded it before. Call it in a task."""
        return _loaded(self, _task_cores())


# Python workers are reused between tasks and between scoring runs.
@functools.lru_cache(maxsize=2)
def _loaded(shipped: ShippedModel, threads: int) -> Predictor:
    from pyspark import SparkFiles

    archive = Path(SparkFiles.get(shipped.archive))
    with tempfile.TemporaryDirectory(prefix="lakelens-model-") as folder:
        _unpack(archive, Path(folder))
        checkpoint = open_checkpoint(folder)
        if checkpoint.digest != shipped.digest:
            raise CheckpointError(
                f"{archive} holds the checkpoint {checkpoint.digest}, {shipped.digest} was sent; "
                "something on this executor has replaced it. Start the job again in a new Spark application"
            )
        _check_memory(checkpoint)
        keep_freed_memory()
        if shipped.engine is None:
            prepare = _prepare_torch if checkpoint.backend == TORCH else _prepare_tensorflow
            _show_gpus()
            prepare(threads, shipped.is_quiet)
        return build_predictor(checkpoint, shipped.batch_bytes, threads, shipped.code, shipped.engine)


def ship(
    spark: SparkSession, model: ModelRef, *, batch_bytes: int, code: UserCode, engine: str | None = None
) -> ShippedModel:
    """Makes a checkpoint, or what `ONNXRUNTIME` runs, available on every executor, even those that join later."""
    # As a file of the session, which each executor fetches once and keeps until the application ends. A broadcast would
    # keep a second copy in the memory of every Python worker; a path would have to be readable from every machine.
    packages = FRAMEWORKS[model.checkpoint.backend].packages if engine is None else (engine,)
    check_workers(spark, f"scoring with {model.uri}", (*_IMPORTED, *packages))
    name = f"lakelens-model-{model.digest}.zip"
    if engine is not None:
        name = f"lakelens-model-{model.digest}-{code.digest()[:16]}-{engine}.zip"
    archive = temporary_folder(spark) / name
    if not archive.exists():
        with tempfile.TemporaryDirectory(prefix="lakelens-engine-") as made:
            if engine is not None:
                with code.loaded() as objects:
                    convert_model(model.checkpoint, Path(made), objects)
            _pack([model.path, Path(made)], archive)
    if engine is not None:
        code = UserCode()
    ship_file(spark, archive)
    # An executor on another machine has its own log, which must show a failed start.
    is_quiet = is_local(spark) and not is_verbose()
    return ShippedModel(
        name,
        model.digest,
        prediction_ddl(task_of(model.checkpoint)),
        batch_bytes,
        code,
        code.digest(),
        is_quiet,
        engine,
    )


def prediction_task(
    shipped: ShippedModel,
    count_file: str | None = None,
    done: TaskCounter | None = None,
    engines: TaskNames | None = None,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Makes the function that predicts in Spark tasks, for `mapInArrow`."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with image_counter(count_file) as count:
            predictor = shipped.predictor()
            if engines is not None:
                engines.add(frozenset([predictor.engine]))
            for predicted in predict_arrow(predictor, batches):
                for error in predicted.column("error"):
                    count(not error.is_valid)
                if done is not None:
                    done.add(predicted.num_rows)
                yield predicted

    return run


def _pack(folders: Sequence[Path], archive: Path) -> None:
    partial = archive.with_name(f".{archive.name}.{secrets.token_hex(8)}")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as packed:
        for file in sorted(file for folder in folders for file in folder.iterdir()):
            if file.is_file():
                with (
                    file.open("rb") as source,
                    packed.open(zipfile.ZipInfo(file.name, _TIMESTAMP), "w", force_zip64=True) as target,
                ):
                    while block := source.read(1 << 20):
                        target.write(block)
    partial.rename(archive)


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        raise CheckpointError(
            f"{archive}: the model did not arrive on this executor ({type(error).__name__}: {error}); "
            "look for a full disk, then start the job again"
        ) from error


def _check_memory(checkpoint: Checkpoint) -> None:
    """Checks that a model's file fits into what the machine has free, or less if Spark limits its Python workers."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    free = psutil.virtual_memory().available
    if most != resource.RLIM_INFINITY:
        give_back()  # what this worker keeps counts as taken
        free = min(free, max(0, most - psutil.Process().memory_info().vms))
    needed = checkpoint.model_path.stat().st_size
    if needed > free:
        raise ScoringFailedError(
            f"the model's file has {needed / 2**20:.0f} MiB, and this Python worker may take {free / 2**20:.0f} MiB "
            "more; score with fewer slots per executor, or give the workers memory: spark.executor.memoryOverhead, and "
            "spark.executor.pyspark.memory if it is set"
        )


def _task_cores() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 1 if context is None else max(1, context.cpus())


# Once: a framework takes its GPU when it starts, and a reused worker keeps that of its first task.
@functools.cache
def _show_gpus() -> None:
    """Shows this worker the GPUs of its task alone; call it before the framework is imported."""
    from pyspark import TaskContext

    context = TaskContext.get()
    gpu = None if context is None else context.resources().get("gpu")
    os.environ.update(visible_to_task(gpu.addresses if gpu else (), os.environ.get("CUDA_VISIBLE_DEVICES")))


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drops TensorFlow's start-up messages about GPUs; no log level covers all of them."""
    kept, silent = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(silent)


def _prepare_torch(threads: int, is_quiet: bool) -> None:
    """Lets PyTorch use the task's cores and no more; by default it takes a thread per core in every worker."""
    import torch

    torch.set_num_threads(threads)


def _prepare_tensorflow(threads: int, is_quiet: bool) -> None:
    """Lets TensorFlow use the task's cores, not all, and a GPU's memory as it needs it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    lazy_imports.install()
    with _quiet_stderr() if is_quiet else contextlib.nullcontext():
        with lazy_imports.without_collections():
            import keras  # noqa: F401  loads the model in a moment
            import tensorflow as tf

        # Other code in this worker may have started TensorFlow before, with its own settings.
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
            for gpu in tf.config.list_physical_devices("GPU"):
                tf.config.experimental.set_memory_growth(gpu, True)
