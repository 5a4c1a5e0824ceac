"""The model as a Spark UDF."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ImageError, InvalidArgumentError
from ..etl.annotations.frames import SourceFile
from ..etl.images.stored_image import CHANNELS, StoredImage, size_of
from ..extras import require
from ..options import named_options, whole_number
from ..training.checkpoints.references import resolve_model
from .model.onnx_engine import check_engine
from .model.predictor import DEFAULT_BATCH_BYTES
from .model.shipping import ShippedModel, predict_pandas, ship
from .model.user_code import user_code

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession
    from pyspark.sql._typing import UserDefinedFunctionLike

_ARGUMENTS = ("image", "format", "height", "width", "source")
# The image alone; with the columns that `raw_rgb` needs; and with the source file's.
_COUNTS = (1, 4, 5)
# Fewer bytes are a bad image, not the pixels of one.
_FEWEST_PIXELS = 64


@named_options
def predict_udf(
    spark: SparkSession,
    model: str | Path,
    *,
    tracking_uri: str | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    custom_objects: Mapping[str, Any] | None = None,
    engine: str | None = None,
) -> UserDefinedFunctionLike:
    """Makes a UDF that predicts for stored images.

    `df.select(udf("image"))` reads encoded images; `udf("image", "format", "height", "width")` reads `raw_rgb` too, and
    with one column a `raw_rgb` table is an error. A detector's boxes are in pixels of the given image, as shown
    upright; `udf("image", "format", "height", "width", "source")` gives them in pixels of the file that an ingest has
    read, as `score` does. The UDF returns a struct with the columns of the model's task, which for
    classification are struct<prediction int, predicted_name string, probability float, probabilities array<float>,
    error string>; a row that cannot be scored has an `error` and null elsewhere. For SQL:
    `spark.udf.register("predict", udf)`.

    The checkpoint is resolved on the driver and sent to every executor once (see `shipping.ship`); each Python worker
    compares its digest and loads it once, however many tasks it runs.

    Memory: the model runs on at most `batch_bytes` of float32 input at once. Before that, Spark hands over
    `spark.sql.execution.arrow.maxRecordsPerBatch` rows (10,000 by default) in one piece; for images, set it to about
    `batch_bytes` / bytes per stored image, as `score` does automatically.

    Args:
        spark: The session that will run it.
        model: `runs:/<run id>`, `models:/<name>@<alias>`, `experiment:<id>` or a checkpoint's path (`resolve_model`).
        tracking_uri: MLflow tracking URI.
        batch_bytes: Most bytes of one batch of float32 input.
        custom_objects: Classes and functions by name that the model needs and neither Keras nor its run's recorded code
            has.
        engine: "onnxruntime" converts a Keras model on the driver (extra `onnxruntime`), and its workers need no
            TensorFlow; None runs a model in its own framework.

    Raises:
        ModelNotFoundError: If `model` has no checkpoint.
        CheckpointError: If the checkpoint is damaged, changed, or of a kind that is refused.
        ModelMismatchError: If the model needs a class that neither Keras, its run's code nor `custom_objects` has, or
            `engine` cannot run it with equal outputs.
        MissingDependencyError: If a package that `engine` needs is not installed.
        ClusterConfigurationError: If the session's Python workers cannot run lakelens and TensorFlow.

    Examples:
        >>> predict = lakelens.predict_udf(spark, "models:/photos@champion")
        >>> names = table.read().select(predict("image").predicted_name).limit(1).collect()
        >>> names[0][0] in ("cat", "dog")
        True
    """
    require("lakelens.predict_udf", "pyspark")
    batch_bytes = whole_number("batch_bytes", batch_bytes, least=1)
    reference = resolve_model(model, tracking_uri)
    check_engine("lakelens.predict_udf", engine, reference)
    code = user_code(reference, custom_objects)
    shipped = ship(spark, reference, batch_bytes=batch_bytes, code=code, engine=engine)
    return udf_of(shipped)


def udf_of(shipped: ShippedModel) -> UserDefinedFunctionLike:
    """Makes the UDF of a model that is already on the executors."""
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def predict(batches: Any) -> Any:
        yield from predict_pandas(shipped.predictor(), _checked(batches))

    # pyspark reads the kind of a pandas UDF from these; they must be types, which this module's annotations are not.
    predict.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.DataFrame]}
    udf: UserDefinedFunctionLike = pandas_udf(predict, shipped.ddl)
    return udf


def _checked(batches: Iterator[pd.Series | tuple[pd.Series, ...]]) -> Iterator[Any]:
    for batch in batches:
        columns = batch if isinstance(batch, tuple) else (batch,)
        if len(columns) not in _COUNTS:
            raise InvalidArgumentError(
                f"the prediction UDF got {len(columns)} columns; give the image alone, or {', '.join(_ARGUMENTS[:-1])} "
                f"and, for boxes in pixels of the source files, {_ARGUMENTS[-1]}"
            )
        if len(columns) == len(_ARGUMENTS):
            _require_source(columns[-1])
        if len(columns) == 1:
            _require_encoded([data for data in columns[0] if data is not None])
        yield batch


def _require_source(column: Any) -> None:
    """Refuses a fifth column that is not an ingest's `source`; Spark gives a struct as a DataFrame."""
    fields = list(getattr(column, "columns", ()))
    if not set(fields).issuperset(SourceFile._fields):
        found = ", ".join(map(str, fields)) or "no fields"
        raise InvalidArgumentError(
            f"the prediction UDF's fifth column has {found}; give the column {_ARGUMENTS[-1]!r} of an image table, a "
            f"struct with {', '.join(SourceFile._fields)}, or four columns"
        )


def _require_encoded(images: Sequence[bytes]) -> None:
    """Refuses a batch of raw pixels: two images or more, none of them encoded, each of 64 whole pixels or more."""
    # A bad image, alone or among good ones, is an error of its row.
    # One good image, usually the first, ends the search.
    if len(images) < 2 or not all(_may_be_pixels(data) for data in images):
        return
    raise InvalidArgumentError(
        f"none of the {len(images)} images of a batch is an encoded image, and their bytes may be the pixels of a "
        f"raw_rgb table; call the UDF with four columns: udf({', '.join(map(repr, _ARGUMENTS[:-1]))})"
    )


def _may_be_pixels(data: bytes) -> bool:
    return len(data) % CHANNELS == 0 and len(data) >= _FEWEST_PIXELS * CHANNELS and not _is_encoded(data)


def _is_encoded(data: bytes) -> bool:
    try:
        size_of(StoredImage(data))
    except ImageError as error:
        return error.reason != "not_an_image"
    return True
