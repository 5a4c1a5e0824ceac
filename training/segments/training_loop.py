"""The training loop of a rank: runs Keras' compiled training function and callbacks between boundaries."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from ...errors import CheckpointError, FeedError
from ...tracking.run_records import RecordFile, RunRecord
from .. import distributed as world
from ..checkpoints.checkpoint import Checkpoint, list_checkpoints, remove_checkpoint, save_checkpoint
from ..checkpoints.keras_files import load_weights
from ..rank.process_context import log_to_driver
from .agreement import Agreement, Wish
from .checks import cause_in_graph, require_finite_losses
from .decisions import Answer, Progress, Reason
from .epoch_end import Pulse, Report, average_statistics
from .metric_sums import metrics_over_ranks
from .pace import Pace
from .prepared_rank import PreparedRank
from .rank_state import (
    RankState,
    capture,
    gather,
    of_rank,
    restore_callbacks,
    restore_process,
    restore_running,
    restore_variables,
)
from .training_state import TrainingState
from .verdicts import Verdicts

# Raised by a dataset without more batches.
_ENDS = (StopIteration, tf.errors.OutOfRangeError)


class TrainingLoop:
    """Trains a prepared rank step by step; all ranks act alike after each step.

    Args:
        prepared: The rank.
        state: Where to continue; None is the training's start.
        checkpoint: The checkpoint of that state, known on rank 0.
        until: The step to end with; None is the end of the training.

    Attributes:
        step: Steps trained.
        last: The checkpoint of that step, on rank 0; None if there is none.
    """

    def __init__(
        self,
        prepared: PreparedRank,
        state: TrainingState | None = None,
        checkpoint: Checkpoint | None = None,
        until: int | None = None,
    ) -> None:
        self._prepared, self._state = prepared, state
        self._model, self._rank, self._job = prepared.model, prepared.rank, prepared.job
        self._schedule = schedule = prepared.job.schedule()
        self._until = min(until or schedule.length, schedule.length)
        self.step = self._first = state.step if state is not None else 0
        self.last = checkpoint
        self._verdicts = Verdicts(self._job, state.progress if state is not None else Progress(), self._rank)
        self._agreement = Agreement(self._rank, self.step)
        self._report: Report | None = None
        self._pace = Pace()
        self._pulse = Pulse() if self._job.reports_progress and self._rank == 0 else None
        self._callbacks = keras.callbacks.CallbackList(
            prepared.callbacks,
            add_history=True,
            model=self._model,
            verbose=0,
            epochs=self._job.epochs,
            steps=schedule.steps_per_epoch,
        )

    @property
    def progress(self) -> Progress:
        """The trial's progress."""
        return self._verdicts.progress

    @property
    def epochs(self) -> int:
        """Trained epochs; one in progress counts."""
        return -(-self.step // self._schedule.steps_per_epoch)

    def train(self) -> Reason:
        """Trains; rank 0 writes checkpoints and records.

        Returns:
            Why it ended.

        Raises:
            TrialError: If the goal's metric is not among the metrics, or a loss is not finite; on every rank.
            FeedError: If a row cannot be used.
        """
        reason: Reason | None = None
        if self._state is not None and self._state.stopped:
            reason = "stopped"
        elif self.step >= self._until:
            reason = "completed"
        self._begin()
        try:
            if self._state is None and self._job.initial_validation:
                self._validate_first()
            while reason is None:
                reason = self._train_step()
        finally:
            if self._report is not None:
                self._report.close()
        optimizer = self._model.optimizer
        if reason != "paused":
            optimizer.finalize_variable_values(self._model.trainable_weights)
            if self._job.restore_best:
                self._restore_best()
        self._callbacks.on_train_end()
        return reason

    def _validate_first(self) -> None:
        """Validates before the first step; its metrics can be the best."""
        if self._prepared.validation is None:
            return
        metrics = self._prepared.validation.measure(self._model)
        if self._report is not None:
            self._report.add(0, metrics)
        if self._job.goal.metric in metrics and self._verdicts.validated(0, 0, metrics).checkpoint:
            self._write(metrics, stopped=False)

    def _restore_best(self) -> None:
        """Restores the weights of the best validation on every rank; checkpoints stay unchanged."""
        if self.progress.best is None or self.progress.best_step == self.step:
            return
        if self._rank == 0:
            kept = list_checkpoints(self._job.folder)
            best = next((each for each in kept if each.metadata["step"] == self.progress.best_step), None)
            if best is None:
                raise CheckpointError(
                    f"{self._job.folder} has no complete checkpoint of step {self.progress.best_step}, the best, whose "
                    "weights early_stopping.restore_best_weights restores"
                )
            load_weights(self._model, best.model_path)
            log_to_driver(f"the model has the weights of its best validation again, after step {best.metadata['step']}")
        world.broadcast_variables(list(self._model.weights), 0)

    def _begin(self) -> None:
        model, state = self._model, self._state
        if self._rank == 0:
            records = RecordFile(self._job.folder)
            if not records.read():
                given = self._prepared.context.hyperparameters.items()
                records.add(RunRecord(params={f"hyperparameters.{name}": value for name, value in given}))
            self._report = Report(records, self._schedule, self._job, self.step)
        model.stop_training = False
        model.make_train_function()
        broadcast = world.callbacks.BroadcastGlobalVariablesCallback(0)
        broadcast.set_model(model)
        broadcast.on_train_begin()
        if not self._schedule.ends_epoch(self.step):
            model.reset_metrics()
        self._callbacks.on_train_begin()
        if state is not None:
            self._restore(state)
        self._dataset = self._prepared.replicas.shared(self._prepared.training)
        self._batches = iter(self._forwarded())
        self._pace.begin()

    def _restore(self, state: TrainingState) -> None:
        callbacks = self._callbacks.callbacks
        if state.is_of(self._prepared.size, self._job.replicas):
            mine = of_rank(state.ranks, self._rank)
            restore_variables(mine, self._model, self._prepared.noisy, inside=state.inside)
            restore_process(mine, callbacks)
            return
        log_to_driver(
            f"the checkpoint is of {len(state.ranks)} ranks with {state.replicas} devices each, this training has "
            f"{self._prepared.size} with {self._job.replicas}: noise is drawn again, so the result is not that of an "
            "uninterrupted training"
        )
        restore_callbacks(state.ranks[0], callbacks)

    def _forwarded(self) -> Any:
        """Returns the batches from the present step on; a custom dataset cannot continue from a position."""
        if self._prepared.feeds or self.step == 0:
            return self._dataset
        given = self._prepared.training
        count = int(given.cardinality())
        return self._prepared.replicas.shared(given.skip(self.step % count if count > 0 else self.step))

    def _epoch_from(self, place: int) -> Any:
        """Returns a dataset of one epoch from a step of the epoch on, if its end showed that it has one epoch."""
        if place == 0:
            return self._dataset
        return self._prepared.replicas.shared(self._prepared.training.skip(place))

    def _train_step(self) -> Reason | None:
        place = self.step % self._schedule.steps_per_epoch
        if place == 0:
            self._begin_epoch()
        self._prepared.learning_rate.set_before(self.step)
        self._callbacks.on_train_batch_begin(place)
        logs = self._trained_batch(place)
        self._callbacks.on_train_batch_end(place, logs)
        self.step += 1
        if self._pulse is not None:
            self._pulse.reached(self.step)
        return self._after_step(logs)

    def _begin_epoch(self) -> None:
        self._model.reset_metrics()
        self._callbacks.on_epoch_begin(self._schedule.epoch(self.step))
        if self._report is not None:
            self._report.begin()
        self._pace.begin()

    def _trained_batch(self, place: int) -> Mapping[str, Any]:
        feed = self._job.training_feed
        try:
            try:
                logs = self._model.train_function(iter((self._next_batch(),)))
            except _ENDS:
                if place > 0 and self.step != self._first:
                    raise self._too_short(place) from None
                self._batches = iter(self._epoch_from(place))  # a custom dataset of one epoch
                try:
                    logs = self._model.train_function(iter((self._next_batch(),)))
                except _ENDS:
                    raise self._too_short(place) from None
        except tf.errors.OpError as error:
            cause = cause_in_graph(error, feed, self._job.task)
            if cause is None:
                raise
            raise cause from None  # TensorFlow's own text has 15,000 characters about the graph
        return dict(logs)

    def _too_short(self, place: int) -> FeedError:
        return FeedError(
            f"build_training_dataset gave {place} batches of an epoch of {self._schedule.steps_per_epoch}; every rank "
            "must give context.training_feed.steps_per_epoch(batch_size, size) of them"
        )

    def _next_batch(self) -> Any:
        began = time.perf_counter()
        batch = next(self._batches)
        self._pace.waited(time.perf_counter() - began)
        return batch

    def _after_step(self, logs: Mapping[str, Any]) -> Reason | None:
        """Validates and writes checkpoints as due after a step; returns why the segment ends, or None."""
        step, schedule = self.step, self._schedule
        ends, validates = schedule.ends_epoch(step), schedule.validates(step)
        metrics: dict[str, float] = {}
        answer: Answer | None = None
        if ends or validates:
            metrics = self._measured(logs, validates)
            if self._report is not None:
                self._report.add(step, metrics)
            require_finite_losses(metrics, step, schedule.epoch(step - 1) + 1)
            if validates:
                answer = self._verdicts.validated(step, self.epochs, metrics)
            if ends:
                self._callbacks.on_epoch_end(schedule.epoch(step) - 1, dict(metrics))
        reason = self._reason(answer, boundary=ends or validates)
        worth_keeping = reason == "paused" or (reason is not None and self.progress.best is not None)
        if worth_keeping or schedule.writes(step) or (answer is not None and answer.checkpoint):
            self._write(metrics if validates else {}, stopped=reason == "stopped")
        if ends or validates:
            self._pace.begin()
        return reason

    def _reason(self, answer: Answer | None, *, boundary: bool) -> Reason | None:
        wish = Wish(self._verdicts.wants_pause(), bool(self._model.stop_training))
        alone = self._prepared.size == 1 and (wish.pause or wish.stop)
        if boundary or alone or self._agreement.due(self.step):
            wish = self._agreement.reached(self.step, wish)
        else:
            wish = Wish(False, False)
        if self.step >= self._until:
            return "completed"
        action = answer.action if answer is not None else "continue"
        if wish.stop or action == "stop":
            return "stopped"
        return "paused" if wish.pause or action == "pause" else None

    def _measured(self, logs: Mapping[str, Any], validates: bool) -> dict[str, float]:
        """Measures the model on all ranks; afterwards all ranks have the same statistics."""
        steps = (self.step - 1) % self._schedule.steps_per_epoch + 1
        measured = self._model._get_metrics_result_or_logs(logs)
        metrics = metrics_over_ranks(self._model, measured, steps * self._job.batch_size)
        times = world.allgather_object(self._pace.ended(), name="lakelens.pace")
        if self._report is not None:
            self._report.trained(self.step, times)
        average_statistics(self._model)
        if validates and self._prepared.validation is not None:
            metrics |= self._prepared.validation.measure(self._model)
        return metrics

    def _write(self, metrics: Mapping[str, float], *, stopped: bool) -> None:
        """Writes a checkpoint of this step on rank 0, with the state of every rank."""
        began = time.perf_counter()
        inside = not self._schedule.ends_epoch(self.step)
        own = capture(self._model, self._prepared.noisy, self._callbacks.callbacks, inside=inside)
        ranks = gather(own, self._rank)
        if inside:  # the saved model has the statistics of all ranks; each rank continues with its own
            average_statistics(self._model)
        if self._rank == 0:
            self._save(metrics, ranks, stopped=stopped, inside=inside)
        restore_running(own, self._model)
        self._pace.left_out(time.perf_counter() - began)

    def _save(self, metrics: Mapping[str, float], ranks: list[RankState], *, stopped: bool, inside: bool) -> None:
        job, step = self._job, self.step
        state = TrainingState(
            step=step,
            epoch=self._schedule.epoch(step),
            steps_per_epoch=self._schedule.steps_per_epoch,
            seed=job.seed,
            position=job.training_feed.position(step, job.batch_size),
            progress=self.progress,
            ranks=ranks,
            stopped=stopped,
            replicas=job.replicas,
        )
        self.last = save_checkpoint(
            self._model,
            job.folder,
            metadata=self._prepared.metadata(step, metrics),
            state=state.as_json(),
            arrays=state.arrays(),
            name=f"step-{step:08d}" if inside else f"epoch-{state.epoch:04d}",
        )
        for name in self._verdicts.wrote(self.last.name, step, metrics):
            remove_checkpoint(Checkpoint(job.folder / name, "", {}))
