"""A Keras model as a graph with constant weights: TensorFlow's, or ONNX, which is run without TensorFlow."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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

if TYPE_CHECKING:
    import tensorflow as tf

FROZEN, UNFROZEN = "frozen graph", "Keras"
# Largest difference of an output to that of Keras.
TOLERANCE = 1e-5
# Outputs that differ less between the test images say nothing about whether two graphs agree.
_VARIES = 1e-4


def freeze(
    traced: tf.types.experimental.PolymorphicFunction, shape: tuple[int, int, int]
) -> tuple[Callable[[Pixels], Any], str]:
    """Freezes a model if it keeps Keras' outputs; returns its function, and `FROZEN` or Keras with the reason."""
    import tensorflow as tf

    def keras_outputs(pixels: Pixels) -> Any:
        return tf.nest.map_structure(np.asarray, traced(pixels))

    try:
        images = check_images(shape)
        # First: freezing removes functions of the model that TensorFlow does not inline.
        expected = keras_outputs(images)
        frozen_outputs = _frozen(traced)
        given = frozen_outputs(images)
    except Exception as error:  # noqa: BLE001  operations, layers and the converter raise whatever they raise
        return keras_outputs, f"{UNFROZEN}: the model cannot be frozen, {first_line(error)}"
    problem = difference(tf.nest.flatten(expected), tf.nest.flatten(given))
    return (frozen_outputs, FROZEN) if problem is None else (keras_outputs, f"{UNFROZEN}: frozen, {problem}")


@contextmanager
def without_tensor_float_32() -> Iterator[None]:
    """Computes float32 products on a GPU in float32, so that they may be compared with those of a processor."""
    import tensorflow as tf

    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def difference(expected: list[Any], given: list[Any]) -> str | None:
    """Compares the outputs for the test images; returns None if they agree, or what speaks against them."""
    for one, other in zip(expected, given, strict=True):
        if one.shape != other.shape or not np.array_equal(np.isfinite(one), np.isfinite(other)):
            return "the model's outputs have other shapes, or values that are not finite"
        finite = np.isfinite(one)
        largest = float(np.abs(one - other)[finite].max(initial=0.0))
        # Boxes and logits may be large; float32 then has fewer digits behind the point.
        allowed = TOLERANCE * max(1.0, float(np.abs(one[finite]).max(initial=0.0)))
        if largest > allowed:
            return f"the model's outputs differ by up to {largest:.1e}, {allowed:.1e} is allowed"
    if all(np.ptp(one, axis=0).max(initial=0.0) < _VARIES for one in expected):
        return "the model's outputs would not be comparable: they are the same for all test images"
    return None


def check_images(shape: tuple[int, int, int]) -> Pixels:
    """Makes images on which graphs are compared, uint8 [8, *shape]: flat colours, noise, smooth fields."""
    height, width, channels = shape
    random = np.random.default_rng(0)  # the same images in every process
    flat = [np.full(shape, level) for level in (0, 128, 255)] + [
        np.broadcast_to(random.integers(0, 256, channels), shape)
    ]
    noise = [random.integers(0, 256, shape), random.normal(128, 40, shape)]
    down, across = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[None, :, None]
    smooth = []
    for _ in range(2):
        a, b, phase = random.uniform(1, 9, (3, channels))
        waves = np.sin(a * down + b * across + phase) * np.cos(b * down - a * across)
        smooth.append(128 + 90 * waves + random.normal(0, 8, shape))
    return np.stack([np.clip(image, 0, 255).astype(np.uint8) for image in [*flat, *noise, *smooth]])


def frozen_function(
    traced: tf.types.experimental.PolymorphicFunction, *, keep_control_flow: bool = False
) -> tuple[tf.types.experimental.ConcreteFunction, tf.types.experimental.ConcreteFunction]:
    """Returns a traced function with its variables and captured tensors as constants; and as it was traced."""
    from tensorflow.python.framework.convert_to_constants import (  # TensorFlow has no public name for it
        convert_variables_to_constants_v2,
    )

    concrete = traced.get_concrete_function()
    options = {"lower_control_flow": False, "aggressive_inlining": True} if keep_control_flow else {}
    return convert_variables_to_constants_v2(concrete, **options), concrete


def _frozen(traced: tf.types.experimental.PolymorphicFunction) -> Callable[[Pixels], Any]:
    import tensorflow as tf

    constant, concrete = frozen_function(traced)

    def outputs(pixels: Pixels) -> Any:
        found = constant(tf.constant(pixels))
        return tf.nest.pack_sequence_as(
            concrete.structured_outputs, [np.asarray(part) for part in tf.nest.flatten(found)]
        )

    return outputs


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
    """Loads what `write_engine` wrote, if it has Keras' outputs; returns its function and what the output means."""
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
