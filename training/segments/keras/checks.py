"""Checks of a Trial's Keras model, and the explanation of errors from inside TensorFlow's graph."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from .... import errors
from ....errors import CheckpointError, FeedError, LakelensError, NoSpaceError, StoreError, TableError, TrialError
from ...checkpoints.checkpoint import save_checkpoint
from ...checkpoints.keras_files import check_keras_file
from ...checkpoints.keras_output import gives_logits, layers_give_logits
from ...distributed.optimizer import is_distributed
from ...rank.process_context import log_to_driver
from ...tasks.output_values import output_values
from ...tasks.task import ModelOutput

if TYPE_CHECKING:
    from ...feed.feed import DeltaFeed
    from ...tasks.task import Task
    from ...trials.keras_trial import KerasTrial

_SAMPLE_ROWS = 2
# Errors of a feed. One of the Trial must reach the driver as it is raised: the other ranks do not raise it.
_OF_ROWS = (FeedError, TableError, StoreError, NoSpaceError)


@contextmanager
def naming_cause(feed: DeltaFeed, task: Task) -> Iterator[None]:
    """Raises the error of the rows alone, whose text TensorFlow surrounds with 15,000 characters about the graph."""
    try:
        yield
    except tf.errors.OpError as error:
        cause = _cause_in_graph(str(error), feed, task)
        if cause is None:
            raise
        raise cause from None


def _cause_in_graph(text: str, feed: DeltaFeed, task: Task) -> LakelensError | None:
    """Finds the error that a feed raised inside the graph, or one about a label that does not fit; None for others."""
    for name, message in reversed(re.findall(r"lakelens\.errors\.(\w+): (.+?)\s*(?:\n\s*\n|$)", text, re.DOTALL)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, _OF_ROWS):
            return kind(message)
    explained = task.explain(text)
    return FeedError(f"{feed.location}@{feed.version} {explained}") if explained is not None else None


def check_model(given: object, trial: KerasTrial) -> ModelOutput:
    """Checks that a Trial's model can be trained and saved by the job."""
    context = trial.context
    model = _compiled_model(given)
    height, width = context.image_size
    if not model.built:
        model.build((None, height, width, 3))
    taken = getattr(model, "input_shape", (None, height, width, 3))  # a subclassed model has none
    if not isinstance(taken, tuple) or len(taken) != 4 or not _fits(taken[1:], (height, width, 3)):
        raise TrialError(
            f"the model takes {taken}, the feed gives images of {(None, height, width, 3)}; build it for "
            "context.image_size, or pass the image_size that it takes"
        )
    shape = _output_shape(model, (None, height, width, 3))
    output = ModelOutput(shape, _loss_name(model), output_values(gives_logits(model), trial.outputs))
    context.task.check_output(output)
    if layers_give_logits(model) is None:
        noise = np.random.default_rng(0).integers(0, 256, (_SAMPLE_ROWS, height, width, 3))
        check_answers(model, context.task, context.task.describe_output(output), noise)
    return output


def check_answers(model: keras.Model, task: Task, described: Mapping[str, Any], images: Any) -> None:
    """Checks what a model makes of some images; for models whose last layer does not show what its values are."""
    try:
        outputs = keras.tree.map_structure(np.asarray, model(np.asarray(images, np.float32), training=False))
    except Exception as error:
        raise TrialError(
            f"the model does not take the feed's images, float32 {tuple(images.shape)} from 0 to 255: "
            f"{type(error).__name__}: {error}"
        ) from error
    task.answers(outputs, described)


def _compiled_model(model: object) -> keras.Model:
    """Checks that a Trial gave a compiled model with a plain optimizer."""
    if not isinstance(model, keras.Model):
        raise TrialError(f"build_model gave {type(model).__name__}; it must give a keras.Model")
    if not model.compiled or model.optimizer is None:
        raise TrialError(
            "build_model gave a model that is not compiled; call model.compile(optimizer, loss, ...) in it"
        )
    if is_distributed(model.optimizer) or is_distributed(getattr(model.optimizer, "inner_optimizer", None)):
        raise TrialError(
            "build_model wraps its optimizer in hvd.DistributedOptimizer, which the job does itself; compile the model "
            "with the plain optimizer"
        )
    return model


def refuse_backups(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Refuses a callback that would resume a training from its own backup instead of the job's checkpoint."""
    if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in callbacks):
        raise TrialError(
            "keras_callbacks has BackupAndRestore, which would put weights of an earlier attempt into this training; "
            "remove it: the job itself continues from its checkpoints (max_restarts, lakelens train --resume)"
        )


def refuse_sums(model: keras.Model) -> None:
    """Refuses a loss that is a sum over rows: shares of a batch have no weights that give the sum over all of it."""
    for loss in keras.tree.flatten(model.loss):
        if getattr(loss, "reduction", None) == "sum":
            raise TrialError(
                f"the loss {loss.name!r} has reduction='sum', so its gradients depend on the number of ranks; make it "
                "with reduction='sum_over_batch_size' and a larger learning rate, or train on one rank"
            )


def _loss_name(model: keras.Model) -> str:
    loss = model.loss
    return loss if isinstance(loss, str) else str(getattr(loss, "name", None) or getattr(loss, "__name__", ""))


def _output_shape(model: keras.Model, taken: tuple[int | None, ...]) -> Any:
    """Returns the shape of what the model gives; None for a model without a shape before its first images."""
    try:
        # `output_shape` lacks the dict around a single output.
        given = model.compute_output_spec(keras.KerasTensor(taken))
    except Exception:  # noqa: BLE001 - the user's own code, which may need real images
        return None
    if isinstance(given, (list, tuple)) and len(given) == 1:
        given = given[0]  # as the call of a functional model gives it; `check_answers` finds other models
    return keras.tree.map_structure(lambda tensor: tensor.shape, given)


def _fits(taken: tuple[int | None, ...], given: tuple[int, ...]) -> bool:
    return all(side is None or side == expected for side, expected in zip(taken, given, strict=True))


def require_savable(model: keras.Model, image_size: tuple[int, int]) -> None:
    """Saves the untrained model once to a temporary folder, to find a model that cannot be saved before training."""
    taken = {"height": image_size[0], "width": image_size[1], "channels": 3}
    with tempfile.TemporaryDirectory(prefix="lakelens-") as folder:
        saved = save_checkpoint(model, folder, metadata={"input": taken})
        try:
            check_keras_file(saved.model_path)
        except CheckpointError as error:
            log_to_driver(f"the model can be trained, but loading it needs its classes: {error}")
