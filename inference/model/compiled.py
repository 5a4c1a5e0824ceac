"""A checkpoint's model as one function from pixels to the answers of its task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import ModelMismatchError, ScoringFailedError, TrialError
from ...etl.images.stored_image import MODES, Pixels
from ...training.checkpoints.checkpoint import Checkpoint
from ...training.checkpoints.keras_output import gives_logits
from ...training.checkpoints.manifests import ENTRYPOINT_KEY, TORCH
from ...training.tasks.output_values import output_values
from ...training.tasks.registry import task_of
from ...training.tasks.task import ModelOutput, Task
from .failures import first_line, is_of_the_machine
from .onnx_engine import FROZEN, freeze, load_engine, write_engine

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

logger = logging.getLogger(__name__)

Answers: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CompiledModel:
    """A model that is ready to run."""

    function: Callable[[Pixels], Answers]  # uint8 [rows, height, width, channels] to float32 [rows, *answer_shape]
    task: Task  # The task that it was trained for
    answer_shape: tuple[int, ...]  # Shape of one row's answer
    engine: str  # What runs it, for reports: `FROZEN`, ONNX Runtime, or the framework, of Keras with the reason
    described: Mapping[str, Any]  # What its values mean, for `Task.answers`


def compile_model(
    checkpoint: Checkpoint, custom_objects: Mapping[str, Any] | None = None, *, onnx_threads: int | None = None
) -> CompiledModel:
    """Loads the model and tries it on one black image."""
    # A checkpoint that other code wrote without a description of its values gets it from the model, as in training.
    shape = checkpoint.input_shape
    if shape[2] not in MODES:
        raise ModelMismatchError(
            f"{checkpoint.path}: the model takes images with {shape[2]} channels; 1 (grey) and 3 (RGB) can be decoded"
        )
    if onnx_threads is not None:
        loaded = _onnx_model(checkpoint, onnx_threads)
    elif checkpoint.backend == TORCH:
        loaded = _torch_model(checkpoint, custom_objects or {})
    else:
        loaded = _keras_model(checkpoint, custom_objects)
    return _compiled(checkpoint, loaded)


def convert_model(checkpoint: Checkpoint, folder: Path, custom_objects: Mapping[str, Any] | None = None) -> None:
    """Writes a Keras model for ONNX Runtime, see `write_engine`."""
    import tensorflow as tf

    model, traced = _traced(checkpoint, custom_objects)
    loaded = _Loaded(lambda pixels: tf.nest.map_structure(np.asarray, traced(pixels)), _described(model), "")
    write_engine(checkpoint, traced, _compiled(checkpoint, loaded).described, folder)


def _compiled(checkpoint: Checkpoint, loaded: _Loaded) -> CompiledModel:
    task = task_of(checkpoint)
    described = checkpoint.metadata.get("task", {})
    outputs = loaded.outputs
    black = _try_out(outputs, checkpoint)
    try:
        if not described.keys() - {"name"}:
            described = loaded.described(task)
        answer = task.answers(black, described)
    except TrialError as error:
        raise ModelMismatchError(f"{checkpoint.path}: {error}") from error
    if len(answer) != 1:
        raise ModelMismatchError(f"{checkpoint.path}: for 1 image the model gives {len(answer)} answers")

    def answers(pixels: Pixels) -> Answers:
        values = outputs(pixels)
        try:
            return task.answers(values, described)
        except TrialError as error:  # of the model, not of a row
            raise ModelMismatchError(f"{checkpoint.path}: {error}") from error

    return CompiledModel(answers, task, answer.shape[1:], loaded.engine, described)


@dataclass(frozen=True)
class _Loaded:
    outputs: Callable[[Pixels], Any]  # uint8 [rows, height, width, channels] to the model's outputs, as float32 arrays
    # Describes these for a checkpoint without a description; raises TrialError if it cannot
    described: Callable[[Task], Mapping[str, Any]]
    engine: str  # What runs it


def _described(model: keras.Model | None) -> Callable[[Task], Mapping[str, Any]]:
    def describe(task: Task) -> Mapping[str, Any]:
        values = None if model is None else output_values(gives_logits(model), None)
        described = task.describe_output(ModelOutput(None, "", values))
        if not described:
            raise TrialError(
                "neither the checkpoint nor the model's last layer shows whether the model gives logits or "
                "probabilities; save the checkpoint with 'task': {'values': 'logits'} or 'probabilities' in its "
                "metadata"
            )
        return described

    return describe


def _keras_model(checkpoint: Checkpoint, custom_objects: Mapping[str, Any] | None) -> _Loaded:
    """Loads a Keras model; it runs frozen if that gives the same outputs (`freeze`), else as Keras runs it."""
    shape = checkpoint.input_shape
    model, traced = _traced(checkpoint, custom_objects)
    outputs, engine = freeze(traced, shape)
    if engine != FROZEN:
        logger.warning("%s runs slower than it could. %s", checkpoint.path, engine)
    return _Loaded(outputs, _described(model), engine)


def _traced(
    checkpoint: Checkpoint, custom_objects: Mapping[str, Any] | None
) -> tuple[keras.Model, tf.types.experimental.PolymorphicFunction]:
    """Loads a Keras model and traces it once for any number of rows, from uint8 pixels to float32 outputs."""
    model = checkpoint.load_model(custom_objects=custom_objects)
    import tensorflow as tf

    def infer(pixels: tf.Tensor) -> Any:
        output = model(tf.cast(pixels, tf.float32), training=False)
        return tf.nest.map_structure(lambda part: tf.cast(part, tf.float32), output)

    signature = [tf.TensorSpec((None, *checkpoint.input_shape), tf.uint8)]
    return model, tf.function(infer, input_signature=signature, autograph=False)


def _onnx_model(checkpoint: Checkpoint, threads: int) -> _Loaded:
    """Loads the graph that `convert_model` wrote next to the checkpoint's files."""
    outputs, described = load_engine(checkpoint.path, checkpoint, threads=threads)
    return _Loaded(outputs, lambda _: described, "ONNX Runtime")


def _torch_model(checkpoint: Checkpoint, user_classes: Mapping[str, Any]) -> _Loaded:
    """Builds a PyTorch model with its Trial, which is among the user's classes."""
    from ...training.trials.torch_model import outputs_of, trained_model

    entrypoint = str(checkpoint.metadata.get(ENTRYPOINT_KEY, ""))
    kind = user_classes.get(entrypoint) or user_classes.get(entrypoint.rpartition(":")[2])
    if kind is None:
        raise ModelMismatchError(
            f"{checkpoint.path}: its model is built by {entrypoint!r}; name the model by its run (runs:/<run id>), or "
            "pass custom_objects={'<its class name>': <the class>}"
        )
    return _Loaded(outputs_of(trained_model(checkpoint, kind)), _described(None), "PyTorch")


def _try_out(run: Callable[[Pixels], Any], checkpoint: Checkpoint) -> Any:
    """Runs the model on one black image; a model that fails here would fail on every row."""
    height, width, channels = checkpoint.input_shape
    try:
        return run(np.zeros((1, height, width, channels), np.uint8))
    # Layers can raise any exception; the caller needs one type that names the model.
    except Exception as error:
        if is_of_the_machine(error):
            raise ScoringFailedError(
                f"{checkpoint.path}: the model failed on a black image, {first_line(error)}"
            ) from error
        raise ModelMismatchError(
            f"{checkpoint.path}: the model raises on a black image of its input size, {height} x {width} x {channels}: "
            f"{first_line(error)}. Check `input` in the checkpoint's metadata against the model's input"
        ) from error
