"""The Backend of Keras models: runs Keras' compiled training function and callbacks on TensorFlow, ranks by Horovod."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from ....errors import FeedError
from ... import distributed as hvd
from ...checkpoints.checkpoint import Checkpoint, save_checkpoint
from ...checkpoints.keras_files import load_weights
from ...checkpoints.manifests import KERAS
from ...keras_internals import logged_metrics
from ...rank.process_context import log_to_driver
from ..training_state import RankState, of_rank, restore_random_state
from .averages import Averages
from .built_trial import BuiltTrial, remember_settings
from .checks import naming_cause
from .metric_sums import metrics_over_ranks
from .model_state import RankCallbacks, capture, restore_callbacks, restore_running, restore_variables
from .validation import average_statistics

if TYPE_CHECKING:
    from ...tasks.task import Counts
    from ...trials.context import TrialContext
    from ..job import TrainingJob
    from ..report import Pace
    from ..training_state import Arrays, TrainingState


class HorovodWorld:
    """Horovod's ranks; see `World`. Makes this process one of them."""

    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def broadcast_object(self, value: Any, *, name: str) -> Any:
        """Returns rank 0's object; see `World.broadcast_object`."""
        return hvd.broadcast_object(value, 0, name=name)

    def allgather_object(self, value: Any, *, name: str) -> list[Any]:
        """Returns the objects of all ranks; see `World.allgather_object`."""
        return hvd.allgather_object(value, name=name)

    def sums(self, arrays: Sequence[np.ndarray[Any, Any]], *, name: str) -> list[np.ndarray[Any, Any]]:
        """Returns sums over all ranks; see `World.sums`."""
        return [np.asarray(total) for total in hvd.grouped_allreduce(list(arrays), name=name, op=hvd.Sum)]


# Raised by a dataset without more batches.
_ENDS = (StopIteration, tf.errors.OutOfRangeError)


class KerasBackend:
    """A Keras model in training; see `Backend`."""

    name: ClassVar[str] = KERAS

    def __init__(
        self,
        job: TrainingJob,
        context: TrialContext,
        world: HorovodWorld,
        state: TrainingState | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._job, self._context, self._state = job, context, state
        self._built = BuiltTrial(job, context, state, checkpoint)
        self._model = self._built.model
        self.described: Mapping[str, Any] = self._built.described
        self._averages = Averages(self._model, self._built.callbacks)
        self._schedule = schedule = job.schedule
        self._logs: dict[str, float] = {}
        self._callbacks = RankCallbacks(
            self._built.callbacks,
            add_history=True,
            model=self._model,
            verbose=0,
            epochs=schedule.epochs,
            steps=schedule.steps_per_epoch,
        )

    @staticmethod
    def join() -> HorovodWorld:
        """Joins Horovod's ranks; see `Backend.join`."""
        return HorovodWorld()

    @staticmethod
    def remember_settings() -> Callable[[], None]:
        """Remembers settings of Keras and TensorFlow; see `Backend.remember_settings`."""
        return remember_settings()

    @property
    def stop_requested(self) -> bool:
        """Whether a callback has set `stop_training`."""
        return bool(self._model.stop_training)

    def begin(self, pace: Pace) -> None:
        """Compiles the training function, broadcasts rank 0's variables and opens the batches; see `Backend.begin`."""
        model, state = self._model, self._state
        self._pace = pace
        self._first = step = state.step if state is not None else 0
        model.stop_training = False
        model.make_train_function()
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        broadcast.set_model(model)
        broadcast.on_train_begin()
        if not self._schedule.ends_epoch(step):
            model.reset_metrics()
        self._callbacks.on_train_begin()
        if state is not None:
            self._restore(state)
        self._dataset = self._built.replicas.shared(self._built.training)
        self._batches = iter(self._forwarded(step))

    def try_step(self) -> None:
        """Does nothing: Keras has traced the step when it built loss and metrics; see `Backend.try_step`."""

    def begin_epoch(self, step: int) -> None:
        """Resets the metrics; see `Backend.begin_epoch`."""
        self._model.reset_metrics()
        self._callbacks.on_epoch_begin(self._schedule.epoch(step))

    def train_step(self, step: int) -> Mapping[str, Any]:
        """Runs the training function on one batch; see `Backend.train_step`."""
        place = step % self._schedule.steps_per_epoch
        self._built.learning_rate.set_before(step)
        self._callbacks.on_train_batch_begin(place)
        logs = self._trained_batch(step, place)
        self._callbacks.on_train_batch_end(place, logs)
        return logs

    def end_epoch(self, step: int, metrics: Mapping[str, float]) -> None:
        """Calls the callbacks; see `Backend.end_epoch`."""
        self._logs = dict(metrics)
        self._callbacks.on_epoch_end(self._schedule.epoch(step) - 1, self._logs)

    def measure(self, logs: Mapping[str, Any], rows: int) -> dict[str, float]:
        """Sums the state of the metrics over ranks; see `Backend.measure`."""
        return metrics_over_ranks(self._model, logged_metrics(self._model, logs), rows)

    def average_statistics(self) -> None:
        """Averages moving means and variances; see `Backend.average_statistics`."""
        average_statistics(self._model)

    def validate(self, *, in_epoch: bool) -> dict[str, float]:
        """Evaluates the model on the validation rows; see `Backend.validate`."""
        validation, feed, task = self._built.validation, self._job.validation_feed, self._context.task
        if validation is None or feed is None:
            return {}
        with naming_cause(feed, task):
            return validation.measure(self._model, task, self.described, self._callbacks if in_epoch else None)

    def count(self, described: Mapping[str, Any]) -> Counts:
        """Runs the model on the validation rows; see `Backend.count`."""
        validation, feed, task = self._built.validation, self._job.validation_feed, self._context.task
        if validation is None or feed is None:
            return task.no_counts()
        with self._averages.in_model(), naming_cause(feed, task):
            return validation.count(self._model, task, described)

    @property
    def picture(self) -> bytes | None:
        """The picture of the last `count`; see `Backend.picture`."""
        return None if self._built.validation is None else self._built.validation.picture

    def capture(self, *, inside: bool) -> RankState:
        """Takes noise, callbacks and variables of this rank; see `Backend.capture`."""
        return capture(self._model, self._built.noisy, self._callbacks.callbacks, inside=inside)

    def restore_running(self, state: RankState) -> None:
        """Restores metrics and moving statistics; see `Backend.restore_running`."""
        restore_running(state, self._model)

    def save(self, metadata: Mapping[str, Any], state: Mapping[str, Any], arrays: Arrays, name: str) -> Checkpoint:
        """Writes a `.keras` file with its state; see `Backend.save`."""
        folder = self._job.folder
        with self._averages.in_model():
            return save_checkpoint(self._model, folder, metadata=metadata, state=state, arrays=arrays, name=name)

    def load(self, path: Path | None) -> None:
        """Reads a `.keras` file on rank 0 and broadcasts; see `Backend.load`."""
        if path is not None and self._context.rank == 0:
            load_weights(self._model, path)
        hvd.broadcast_variables(list(self._model.weights), 0)
        if hvd.broadcast_object(path is not None, name="lakelens.loaded"):
            self._averages.loaded()

    def finalize(self) -> bool:
        """Takes the weights that the optimizer averages, if it does; see `Backend.finalize`."""
        return self._averages.finalize()

    def end(self) -> None:
        """Calls the callbacks; see `Backend.end`."""
        self._callbacks.on_train_end(self._logs)

    def _restore(self, state: TrainingState) -> None:
        callbacks = self._callbacks.callbacks
        if state.is_of(self._context.size, self._job.replicas):
            mine = of_rank(state.ranks, self._context.rank)
            restore_variables(mine, self._model, self._built.noisy, inside=state.inside)
            restore_callbacks(mine, callbacks)
            restore_random_state(mine)
        else:
            log_to_driver(
                f"the checkpoint is of {len(state.ranks)} ranks with {state.replicas} devices each, this training has "
                f"{self._context.size} with {self._job.replicas}: noise is drawn again, so the result is not that of "
                "an uninterrupted training"
            )
            restore_callbacks(state.ranks[0], callbacks)
        self._averages.continue_training()

    def _forwarded(self, step: int) -> Any:
        """Returns the batches after a step; a custom dataset cannot continue from a position."""
        if self._built.feeds or step == 0:
            return self._dataset
        given = self._built.training
        count = int(given.cardinality())
        return self._built.replicas.shared(given.skip(step % count if count > 0 else step))

    def _trained_batch(self, step: int, place: int) -> Mapping[str, Any]:
        too_short = place > 0 and step != self._first
        with naming_cause(self._job.training_feed, self._context.task):
            while True:
                try:
                    return dict(self._model.train_function(iter((self._next_batch(),))))
                except _ENDS:
                    if too_short:
                        raise FeedError(
                            f"build_training_dataset gave {place} batches of an epoch of "
                            f"{self._schedule.steps_per_epoch}; every rank must give "
                            "context.training_feed.steps_per_epoch(global_batch_size, size) of them"
                        ) from None
                # A custom dataset of one epoch begins again, after the steps of the epoch that are trained.
                shared = self._built.replicas.shared
                self._batches = iter(shared(self._built.training.skip(place)) if place > 0 else self._dataset)
                too_short = True

    def _next_batch(self) -> Any:
        began = time.perf_counter()
        batch = next(self._batches)
        self._pace.waited(time.perf_counter() - began)
        return batch
