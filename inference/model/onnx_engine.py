"""A Keras model as an ONNX graph: written and compared on the driver, run by ONNX Runtime without TensorFlow."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidArgumentError, ModelMismatchError
from ...etl.images.stored_image import Pixels
from ...extras import require
from ...training.checkpoints.checkpoint import Checkpoint
from ...training.checkpoints.manifests import KERAS
from ...training.checkpoints.references import ModelRef
from .failures import first_line
from .frozen import check_images, difference, frozen_function, without_tensor_float_32

if TYPE_CHECKING:
    import tensorflow as tf

ONNXRUNTIME = "onnxruntime"
# Next to a checkpoint's own files: the graph, and Keras' outputs for the images on which engines are compared.
GRAPH_FILE, EXPECTED_FILE = "engine.onnx", "engine-expected.npy"
# Key of the graph's properties: what its values mean, for `Task.answers`.
_DESCRIBED = "lakelens.task"
CONVERTERS = ("tensorflow", "keras", "tf2onnx", "onnx", "onnxruntime")


def check_engine(call: str, engine: str | None, *models: ModelRef) -> None:
    """Checks that an engine exists, is installed here, and runs models of this kind."""
    if engine is None:
        return
    if engine != ONNXRUNTIME:
        raise InvalidArgumentError(
            f"engine={engine!r}: give {ONNXRUNTIME!r}, or leave it out (--engine) for the model's own framework"
        )
    require(f"{call} with engine={engine!r}", *CONVERTERS)
    for model in models:
        if model.checkpoint.backend != KERAS:
            raise _refused(model.uri, f"its backend is {model.checkpoint.backend!r}, {KERAS!r} is needed")


def write_graph(traced: tf.types.experimental.PolymorphicFunction, path: Path, properties: Mapping[str, str]) -> None:
    """Converts a function to a file that needs nothing else."""
    import onnx

    try:
        graph = _converted(traced)
    except Exception as error:
        raise ModelMismatchError(f"the model cannot be converted to ONNX, {first_line(error)}") from error
    foreign = {node.op_type for node in graph.graph.node if not onnx.defs.has(node.op_type, node.domain)}
    if foreign:
        raise ModelMismatchError(f"ONNX has no operation {', '.join(sorted(foreign))}, which the model uses")
    onnx.helper.set_model_props(graph, dict(properties))
    path.write_bytes(graph.SerializeToString())


def _converted(traced: tf.types.experimental.PolymorphicFunction) -> Any:
    """Converts the frozen graph, in which constants that the function captures are not inputs."""
    import tf2onnx

    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # what it cannot convert is an error of the caller
    frozen, concrete = frozen_function(traced, keep_control_flow=True)
    inputs = [tensor.name for tensor in frozen.inputs]
    outputs = [tensor.name for tensor in frozen.outputs]
    given, found = concrete.structured_input_signature, concrete.structured_outputs
    names = [spec.name for spec in given[0]]
    names += sorted(found) if isinstance(found, dict) else ["output"]
    graph, _ = tf2onnx.convert.from_graph_def(
        frozen.graph.as_graph_def(add_shapes=True),
        input_names=inputs,
        output_names=outputs,
        tensors_to_rename=dict(zip([*inputs, *outputs], names, strict=True)),
    )
    return graph


def write_engine(
    checkpoint: Checkpoint,
    traced: tf.types.experimental.PolymorphicFunction,
    described: Mapping[str, Any],
    folder: Path,
) -> None:
    """Writes what workers need to run a model, once ONNX Runtime gave Keras' outputs here."""
    images = check_images(checkpoint.input_shape)
    try:
        with without_tensor_float_32():
            expected = np.asarray(traced(images))  # first: converting removes functions that TensorFlow does not inline
    except Exception as error:
        raise _refused(str(checkpoint.path), first_line(error)) from error
    try:
        write_graph(traced, folder / GRAPH_FILE, {_DESCRIBED: json.dumps(dict(described))})
    except ModelMismatchError as error:
        raise _refused(str(checkpoint.path), str(error)) from error
    np.save(folder / EXPECTED_FILE, expected)
    load_engine(folder, checkpoint, threads=1)


def load_engine(
    folder: Path, checkpoint: Checkpoint, *, threads: int
) -> tuple[Callable[[Pixels], Any], Mapping[str, Any]]:
    """Loads what `write_engine` wrote, and compares its outputs with those of Keras.

    Returns the function from uint8 [rows, height, width, channels] to the model's output; and what that means.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(
            (folder / GRAPH_FILE).read_bytes(), options, providers=["CPUExecutionProvider"]
        )
        name = session.get_inputs()[0].name

        def outputs(pixels: Pixels) -> Any:
            return session.run(None, {name: pixels})[0]

        given = outputs(check_images(checkpoint.input_shape))
        expected = np.load(folder / EXPECTED_FILE, allow_pickle=False)
        described: Mapping[str, Any] = json.loads(session.get_modelmeta().custom_metadata_map[_DESCRIBED])
    except Exception as error:
        raise _refused(str(checkpoint.path), first_line(error)) from error
    problem = difference([expected], [given])
    if problem is not None:
        raise _refused(str(checkpoint.path), problem)
    return outputs, described


def _refused(model: str, reason: str) -> ModelMismatchError:
    return ModelMismatchError(
        f"{model}: ONNX Runtime cannot run the model: {reason}. Leave out engine={ONNXRUNTIME!r} (--engine), and the "
        "model's own framework runs it"
    )
