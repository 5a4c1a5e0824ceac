"""A rank's checks before the first step, and the explanation of errors from inside TensorFlow's graph."""

from __future__ import annotations

import math
import re
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import errors
from ...errors import CheckpointError, FeedError, NotFiniteError, TrialError
from ..checkpoints.checkpoint import save_checkpoint
from ..checkpoints.keras_files import check_keras_file
from ..rank.process_context import log_to_driver

if TYPE_CHECKING:
    import keras

    from ...tracking.runs import RunReference
    from ..feed.feed import DeltaFeed
    from ..tasks.task import Task
    from ..trials.context import TrialContext

# The driver leaves the run's id in a file of this name in the run's checkpoint folder.
PROBE_FILE = ".reachable"


def cause_in_graph(error: Exception, feed: DeltaFeed, task: Task) -> FeedError | None:
    """Finds the user's error in what TensorFlow raises about a whole graph.

    Args:
        error: The error of `fit`; its text has about 15,000 characters.
        feed: The training feed.
        task: The task of its labels.

    Returns:
        The error that a feed raised inside the graph, or one about a label that does not fit; None for other
        causes.
    """
    text = str(error)
    for name, message in reversed(re.findall(r"lakelens\.errors\.(\w+): (.+?)\s*(?:\n\s*\n|$)", text, re.DOTALL)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, FeedError):
            return kind(message)
    explained = task.explain(text)
    if explained is not None:
        return FeedError(f"{feed.location}@{feed.version} {explained}")
    return None


def require_finite_losses(metrics: Mapping[str, float], step: int, epoch: int) -> None:
    """Checks the losses that all ranks have measured after a step.

    Other metrics may be NaN, such as the precision of a class without rows.

    Raises:
        NotFiniteError: If a loss is NaN or infinite.
    """
    for name, value in metrics.items():
        if (name == "loss" or name.endswith("_loss")) and not math.isfinite(value):
            raise NotFiniteError(
                f"{name} is {value} after step {step} (epoch {epoch}); lower the learning rate, or look at the labels "
                "and the loss"
            )


def check_model(model: object, context: TrialContext) -> None:
    """Checks that a Trial's model can be trained and saved by the job.

    Raises:
        TrialError: If it is not a compiled Keras model, already averages gradients over ranks, or its input or output
            does not fit the images and the task.
    """
    import keras

    if not isinstance(model, keras.Model):
        raise TrialError(f"build_model gave {type(model).__name__}; it must give a keras.Model")
    if not model.compiled or model.optimizer is None:
        raise TrialError(
            "build_model gave a model that is not compiled; call model.compile(optimizer, loss, ...) in it"
        )
    from ..distributed.optimizer import is_distributed

    if is_distributed(model.optimizer) or is_distributed(getattr(model.optimizer, "inner_optimizer", None)):
        raise TrialError(
            "build_model wraps its optimizer in hvd.DistributedOptimizer, which the job does itself; compile the model "
            "with the plain optimizer"
        )
    height, width = context.image_size
    if not model.built:
        model.build((None, height, width, 3))
    taken = getattr(model, "input_shape", (None, height, width, 3))  # a subclassed model has none
    if not isinstance(taken, tuple) or len(taken) != 4 or not _fits(taken[1:], (height, width, 3)):
        raise TrialError(
            f"the model takes {taken}, the feed gives images of {(None, height, width, 3)}; build it for "
            "context.image_size, or pass the image_size that it takes"
        )
    context.task.check_output(model, _output_shape(model, (None, height, width, 3)))


def _output_shape(model: keras.Model, taken: tuple[int | None, ...]) -> Any:
    """Returns the shape of what the model gives; None for a model without a shape before its first images."""
    import keras

    try:
        return model.output_shape
    except AttributeError:  # a subclassed model has none
        pass
    try:
        return keras.tree.map_structure(lambda given: given.shape, model.compute_output_spec(keras.KerasTensor(taken)))
    except Exception:  # noqa: BLE001 - the user's own code, which may need real images
        return None


def _fits(taken: tuple[int | None, ...], given: tuple[int, ...]) -> bool:
    return all(side is None or side == expected for side, expected in zip(taken, given, strict=True))


def require_reachable(folder: Path, run: RunReference) -> None:
    """Checks, on rank 0, that it writes to the driver's folder.

    Raises:
        CheckpointError: If the folder is not the one into which the driver has written the run's id.
    """
    probe = folder / PROBE_FILE
    here = socket.gethostname()
    try:
        seen = probe.read_text(encoding="utf-8")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CheckpointError(
            f"rank 0 on {here} cannot read and write {folder}, which the driver on {run.created_on} made "
            f"({error}); give a checkpoint_dir that both mount, such as NFS, /dbfs or /Volumes"
        ) from error
    if seen != run.run_id:
        raise CheckpointError(
            f"{folder} on {here} is not the folder of that name on the driver's machine {run.created_on}; "
            "give a checkpoint_dir that both mount, such as NFS, /dbfs or /Volumes"
        )


def require_savable(model: keras.Model, metadata: Mapping[str, Any]) -> None:
    """Saves the untrained model once to a temporary folder, to find a model that cannot be saved before training.

    Raises:
        CheckpointError: If it cannot be saved, or could not be loaded again.
    """
    with tempfile.TemporaryDirectory(prefix="lakelens-") as folder:
        saved = save_checkpoint(model, folder, metadata=metadata)
        try:
            check_keras_file(saved.model_path)
        except CheckpointError as error:
            log_to_driver(f"the model can be trained, but loading it needs its classes: {error}")
