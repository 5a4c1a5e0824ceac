"""A checkpoint's model as one function from pixels to the answers of its task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import ModelMismatchError, ScoringFailedError, TrialError
from ...etl.images.stored_image import MODES, Pixels
from ...training.checkpoints.checkpoint import Checkpoint
from ...training.checkpoints.keras_output import gives_logits
from ...training.checkpoints.manifests import ENTRYPOINT_KEY, TORCH
from ...training.tasks.registry import task_of
from ...training.tasks.task import ModelOutput, Task
from .failures import first_line, is_of_the_machine
from .frozen import FROZEN, freeze

logger = logging.getLogger(__name__)

Answers: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CompiledModel:
    """A model that is ready to run.

    Attributes:
        function: uint8 [rows, height, width, channels] to float32 [rows, *answer_shape].
        task: The task that it was trained for.
        answer_shape: Shape of one row's answer.
        engine: What runs it, for reports: `FROZEN`, or the framework, of Keras with the reason.
        described: What its values mean, for `Task.answers`.
    """

    function: Callable[[Pixels], Answers]
    task: Task
    answer_shape: tuple[int, ...]
    engine: str
    described: Mapping[str, Any]


def compile_model(checkpoint: Checkpoint, custom_objects: Mapping[str, Any] | None = None) -> CompiledModel:
    """Loads the model and tries it on one black image.

    The checkpoint describes the values that the model gives. A checkpoint that other code wrote without a description
    gets it from the model here, as in training.

    Raises:
        CheckpointError: If the file is damaged or has refused content, or the checkpoint's task is unknown.
        ModelMismatchError: If the model does not take the images that its checkpoint describes, or its output does not
            fit the task.
        ScoringFailedError: If the machine fails while the model is tried.
    """
    shape = checkpoint.input_shape
    if shape[2] not in MODES:
        raise ModelMismatchError(
            f"{checkpoint.path}: the model takes images with {shape[2]} channels; 1 (grey) and 3 (RGB) can be decoded"
        )
    task = task_of(checkpoint)
    described = checkpoint.metadata.get("task", {})
    loaded = (
        _torch_model(checkpoint, custom_objects or {})
        if checkpoint.backend == TORCH
        else (_keras_model(checkpoint, custom_objects))
    )
    outputs = loaded.outputs
    black = _try_out(outputs, checkpoint)
    if not described.keys() - {"name"}:
        described = task.describe_output(ModelOutput(None, "", loaded.gives_logits))
    try:
        answer = task.answers(black, described)
    except TrialError as error:
        raise ModelMismatchError(f"{checkpoint.path}: {error}") from error
    if len(answer) != 1:
        raise ModelMismatchError(f"{checkpoint.path}: for 1 image the model gives {len(answer)} answers")
    return CompiledModel(
        lambda pixels: task.answers(outputs(pixels), described), task, answer.shape[1:], loaded.engine, described
    )


@dataclass(frozen=True)
class _Loaded:
    """A loaded model.

    Attributes:
        outputs: uint8 [rows, height, width, channels] to the model's outputs, as float32 arrays.
        gives_logits: Finds out whether these are logits; None if nothing shows it.
        engine: What runs it.
    """

    outputs: Callable[[Pixels], Any]
    gives_logits: Callable[[], bool | None]
    engine: str


def _keras_model(checkpoint: Checkpoint, custom_objects: Mapping[str, Any] | None) -> _Loaded:
    """Loads a Keras model and traces it once for any number of rows.

    It runs as a graph frozen to constants if that gives the same outputs (`freeze`), else as Keras runs it.
    """
    shape = checkpoint.input_shape
    model = checkpoint.load_model(custom_objects=custom_objects)
    import tensorflow as tf

    def infer(pixels: tf.Tensor) -> Any:
        output = model(tf.cast(pixels, tf.float32), training=False)
        return tf.nest.map_structure(lambda part: tf.cast(part, tf.float32), output)

    traced = tf.function(infer, input_signature=[tf.TensorSpec((None, *shape), tf.uint8)], autograph=False)
    outputs, engine = freeze(traced, shape)
    if engine != FROZEN:
        logger.warning("%s runs slower than it could. %s", checkpoint.path, engine)
    return _Loaded(outputs, lambda: gives_logits(model, shape), engine)


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
    return _Loaded(outputs_of(trained_model(checkpoint, kind)), lambda: None, "PyTorch")


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
            f"{checkpoint.path}: the model raises on a black image of its own size, {height} x {width} x {channels}: "
            f"{first_line(error)}. Check `input` in the checkpoint's metadata against the model's input"
        ) from error
