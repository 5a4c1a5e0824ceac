"""One rank of a training job: builds the Trial, trains it on its share of the feed, and rank 0 keeps what comes of it.

What is recorded goes through a file to the driver, which alone speaks to MLflow.

Everything that can go wrong on every rank alike (a hyperparameter, a model that does not fit, a folder out of reach) is
found before the first step and comes back as a value, so that the driver raises the error itself rather than a log.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import errors
from ...errors import LakelensError, TrialError
from ...tracking.run_records import RecordFile, RunRecord
from ...tracking.runs import RunReference
from ..checkpoints.checkpoint import Checkpoint, save_checkpoint
from ..feed.feed import DeltaFeed
from ..trials.entrypoint import EntryPoint
from ..trials.metrics import Goal, batches_of_rank, rows_of_rank
from ..trials.trial import Trial, TrialContext
from .checks import cause_in_graph, check_model, require_reachable, require_savable
from .noise import rank_seed, separate_noise

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from .epoch_end import KeepBest, Validation

# Validation images of one rank are kept decoded up to here; more are decoded again each epoch.
_CACHE_LIMIT_BYTES = 256 << 20


@dataclass(frozen=True)
class TrainingJob:
    """What every rank is told.

    Attributes:
        entrypoint: The Trial.
        training_feed: Rows to train on.
        validation_feed: Rows to validate on; None for none.
        hyperparameters: Given by the user.
        class_names: By label number.
        image_size: Height and width of the images that the model takes.
        batch_size: Images per step over all ranks.
        epochs: At the most.
        seed: Of weights, order and augmentation.
        goal: Which epoch is the best one.
        patience: Epochs without improvement after which training ends; None trains all epochs.
        folder: Where rank 0 writes checkpoints.
        run: The MLflow run that the job is recorded in.
        imports: What ranks import first; the launcher looks for these names and lets ranks begin with them.
    """

    entrypoint: EntryPoint
    training_feed: DeltaFeed
    validation_feed: DeltaFeed | None
    hyperparameters: Mapping[str, Any]
    class_names: list[str]
    image_size: tuple[int, int]
    batch_size: int
    epochs: int
    seed: int
    goal: Goal
    patience: int | None
    folder: Path
    run: RunReference
    imports: tuple[str, ...] = field(default=("lakelens.training.distributed",))


@dataclass(frozen=True)
class RankOutcome:
    """What rank 0 gives back.

    Attributes:
        checkpoint: Folder of the best checkpoint.
        digest: Its digest.
        best_epoch: Its epoch, from 1.
        metrics: That epoch's metrics.
        epochs: Epochs that were trained.
        ranks: Number of ranks.
        failure: Name and message of an error of lakelens; then nothing else counts.
    """

    checkpoint: str = ""
    digest: str = ""
    best_epoch: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 0
    ranks: int = 0
    failure: tuple[str, str] | None = None

    def raise_failure(self) -> None:
        """Raises the error that the ranks met, as the class that it was there.

        Raises:
            LakelensError: If there was one.
        """
        if self.failure is not None:
            name, message = self.failure
            raise getattr(errors, name, LakelensError)(message)


def run_rank(job: TrainingJob) -> RankOutcome:
    """Trains one rank; returns what rank 0 found."""
    from .. import distributed as world

    world.init()
    _share_cores(world.local_size())
    prepared: _Rank | None = None
    failure: tuple[str, str] | None = None
    try:
        prepared = _Rank(job, world.rank(), world.size())
    except LakelensError as error:
        failure = (type(error).__name__, str(error))
    failures = [met for met in world.allgather_object(failure, name="lakelens.prepared") if met is not None]
    if failures or prepared is None:
        return RankOutcome(failure=failures[0])
    return prepared.train()


class _Rank:
    """A rank that is ready to train: all that can be checked beforehand has been."""

    def __init__(self, job: TrainingJob, rank: int, size: int) -> None:
        import keras

        self.job, self.rank, self.size = job, rank, size
        if rank == 0:
            require_reachable(job.folder, job.run)
        keras.utils.set_random_seed(job.seed)
        self.context = TrialContext(
            hyperparameters=job.hyperparameters,
            class_names=job.class_names,
            image_size=job.image_size,
            batch_size=job.batch_size,
            epochs=job.epochs,
            rank=rank,
            size=size,
            seed=job.seed,
            training_feed=job.training_feed,
            validation_feed=job.validation_feed,
        )
        self.trial = job.entrypoint.load()(self.context)
        self.model = self.trial.build_model()
        check_model(self.model, self.context)
        self.callbacks = list(self.trial.keras_callbacks() or [])
        if rank > 0:
            # From here on a seed is one of noise: what all ranks must have alike has been built.
            separate_noise([self.model, *_layers_of(self.trial)], rank)
            keras.utils.set_random_seed(rank_seed(job.seed, rank))
        self.training = self._training_dataset()
        self.validation = self._validation()
        self.context.require_all_used()
        if rank == 0:
            require_savable(self.model, self._metadata(0, {}))

    def train(self) -> RankOutcome:
        """Trains; rank 0 writes checkpoints and records."""
        from .. import distributed as world
        from .epoch_end import KeepBest, described

        self.model.optimizer = world.DistributedOptimizer(self.model.optimizer)
        best = KeepBest(self.job.goal, self._save if self.rank == 0 else None)
        try:
            outcome = self._outcome(best, self._fit(self._all_callbacks(best)))
        except TrialError as error:  # every rank meets it here alike
            return RankOutcome(failure=("TrialError", str(error)))
        if self.rank == 0:
            shown = described(outcome.metrics)
            world.log_to_driver(f"best epoch by {self.job.goal.metric}: {outcome.best_epoch}/{outcome.epochs}: {shown}")
        return outcome

    def _all_callbacks(self, best: KeepBest) -> list[keras.callbacks.Callback]:
        """Gives the callbacks in the order in which each needs what those before it have done to the logs."""
        import keras

        from .. import distributed as world
        from .epoch_end import Report, SharedStatistics, WholeLoss

        callbacks = [
            world.callbacks.BroadcastGlobalVariablesCallback(0),
            world.callbacks.MetricAverageCallback(),
            SharedStatistics(),
        ]
        if self.factor != 1:
            callbacks.append(WholeLoss(self.factor))
        if self.validation is not None:
            callbacks.append(self.validation)
        if self.rank == 0:
            records = RecordFile(self.job.folder)
            given = self.context.hyperparameters.items()
            records.add(RunRecord(params={f"hyperparameters.{name}": value for name, value in given}))
            callbacks.append(Report(self.job.epochs, records))
        callbacks.append(best)
        callbacks += self.callbacks
        if self.job.patience is not None:
            goal = self.job.goal
            callbacks.append(keras.callbacks.EarlyStopping(goal.metric, mode=goal.mode, patience=self.job.patience))
        return callbacks

    def _fit(self, callbacks: list[keras.callbacks.Callback]) -> int:
        """Trains; gives the number of epochs."""
        import tensorflow as tf

        try:
            history = self.model.fit(
                self.training,
                epochs=self.job.epochs,
                steps_per_epoch=self.job.training_feed.steps_per_epoch(self.job.batch_size, self.size),
                callbacks=callbacks,
                verbose=0,
                shuffle=False,
            )
        except tf.errors.OpError as error:
            cause = cause_in_graph(error, self.job.training_feed)
            if cause is None:
                raise
            raise cause from None  # TensorFlow's own text is 15,000 characters about the graph
        return len(history.epoch)

    def _outcome(self, best: KeepBest, trained: int) -> RankOutcome:
        if best.best is None:
            raise TrialError(
                f"{self.job.goal.metric} was NaN in each of the {trained} epochs, so none is the best; lower "
                "the learning rate, or look at the labels and the loss"
            )
        kept = best.checkpoint
        return RankOutcome(
            checkpoint=str(kept.path) if kept else "",
            digest=kept.digest if kept else "",
            best_epoch=best.best_epoch,
            metrics=best.best_metrics,
            epochs=trained,
            ranks=self.size,
        )

    def _training_dataset(self) -> tf.data.Dataset:
        feed = self.job.training_feed
        given = self.trial.build_training_dataset()
        if given is not None:
            self.factor = 1.0
            return given
        self.factor = feed.steps_per_epoch(self.job.batch_size) * self.job.batch_size / feed.rows
        augments = type(self.trial).preprocess is not Trial.preprocess
        return feed.as_dataset(
            self.job.batch_size,
            self.rank,
            self.size,
            epochs=self.job.epochs,
            image_size=self.job.image_size,
            preprocess=self.trial.preprocess if augments else None,
        )

    def _validation(self) -> Validation | None:
        from .epoch_end import Validation, count_rows

        feed = self.job.validation_feed
        if feed is None:
            return None
        given = self.trial.build_validation_dataset()
        if given is not None:
            return Validation(given, *count_rows(given))
        share = (self.rank, self.size)
        dataset = feed.as_dataset(self.job.batch_size, *share, image_size=self.job.image_size)
        rows = rows_of_rank(feed.rows, *share)
        height, width = self.job.image_size
        if rows * height * width * 3 * 4 <= _CACHE_LIMIT_BYTES:
            dataset = dataset.cache()
        return Validation(dataset, rows, batches_of_rank(feed.rows, self.job.batch_size, *share))

    def _save(self, epoch: int, metrics: dict[str, float]) -> Checkpoint:
        feed = self.job.training_feed
        steps = epoch * feed.steps_per_epoch(self.job.batch_size, self.size)
        state = {"epoch": epoch, "seed": self.job.seed, "position": feed.position(steps, self.job.batch_size)}
        return save_checkpoint(
            self.model,
            self.job.folder,
            metadata=self._metadata(epoch, metrics),
            state=state,
            name=f"epoch-{epoch:04d}",
        )

    def _metadata(self, epoch: int, metrics: Mapping[str, float]) -> dict[str, Any]:
        height, width = self.job.image_size
        return {
            "input": {"height": height, "width": width, "channels": 3},
            "labels": {str(number): name for number, name in enumerate(self.job.class_names)},
            "table": self.job.training_feed.location,
            "version": self.job.training_feed.version,
            "entrypoint": self.job.entrypoint.name,
            "hyperparameters": self.context.hyperparameters,
            "epoch": epoch,
            "run_id": self.job.run.run_id,
            "metrics": dict(metrics),
            "batch_size": self.job.batch_size,
            "ranks": self.size,
            "seed": self.job.seed,
        }


def _layers_of(trial: Trial) -> list[keras.layers.Layer]:
    """Finds the layers that a Trial holds outside its model, such as those that `preprocess` augments with."""
    import keras

    return [value for value in vars(trial).values() if isinstance(value, keras.layers.Layer)]


def _share_cores(local_size: int) -> None:
    """Gives each rank of a machine its part of the cores; TensorFlow's own default is all of them for each rank."""
    import tensorflow as tf

    if local_size == 1 or os.environ.get("TF_NUM_INTRAOP_THREADS"):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // local_size))
    except RuntimeError:
        return  # TensorFlow is in use already, as in a notebook's own process
