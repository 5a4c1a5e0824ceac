"""A rank that is ready to train: with Trial, model, feed and validation built and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras

from ...errors import TrialError
from ..checkpoints.keras_files import load_weights
from ..checkpoints.warm_start import take_weights
from ..rank.process_context import log_to_driver
from ..trials.context import TrialContext
from ..trials.keras_trial import KerasTrial
from ..trials.metrics import batches_of_rank, rows_of_rank
from .checks import check_model, require_reachable, require_savable
from .job import TrainingJob
from .metric_sums import check_goal, check_metrics
from .noise import rank_seed, renew_noise, separate_noise
from .optimizations import LearningRate, distributed
from .real_rows import leave_out_padding, without_padding
from .replicas import Replicas

if TYPE_CHECKING:
    from ..checkpoints.checkpoint import Checkpoint
    from .epoch_end import Validation
    from .noise import NoiseSource
    from .training_state import TrainingState

# Validation images of one rank are kept decoded up to here; more are decoded again each epoch.
_CACHE_LIMIT_BYTES = 256 << 20


class PreparedRank:
    """Builds Trial, model and feeds of a rank, without waiting for other ranks.

    Args:
        job: The training job.
        rank: This rank.
        size: Number of ranks.
        state: Where the training continues; None is its start.
        checkpoint: The checkpoint of that state, which rank 0 reads.

    Attributes:
        model: The model, built and compiled, its optimizer distributed; on rank 0 with the checkpoint's weights.
        described: On rank 0 the task's description of the model's output.
        replicas: The devices of this process.
        learning_rate: Scales and raises the optimizer's learning rate.
        noisy: The model, and layers and seed generators outside it that draw noise.
        callbacks: The Trial's.
        training: Batches from the state's position on.
        feeds: Whether these come from the job's feed, not from a custom dataset.
        validation: None if there is none.
    """

    def __init__(
        self, job: TrainingJob, rank: int, size: int, state: TrainingState | None, checkpoint: Checkpoint | None
    ) -> None:
        self.job, self.rank, self.size = job, rank, size
        if rank == 0:
            require_reachable(job.folder, job.run)
        self.replicas = Replicas(job.replicas)
        if job.optimizations.mixed_precision is not None:
            keras.config.set_dtype_policy(f"mixed_{job.optimizations.mixed_precision}")
        keras.utils.set_random_seed(job.seed)
        self.context = TrialContext(
            hyperparameters=job.hyperparameters,
            task=job.task,
            image_size=job.image_size,
            batch_size=job.batch_size,
            epochs=job.epochs,
            rank=rank,
            size=size,
            seed=job.seed,
            # The training step counts real rows itself: weights that correct a short batch would count twice.
            training_feed=job.training_feed.with_equal_weights(),
            validation_feed=job.validation_feed.with_equal_weights() if job.validation_feed is not None else None,
        )
        with self.replicas.scope():
            self.trial = _keras_trial(job, self.context)
            self.model = self.trial.build_model()
            check_model(self.model, self.context)
            self.callbacks = list(self.trial.keras_callbacks() or [])
        self.described = job.task.describe_output(self.model, (*job.image_size, 3)) if rank == 0 else {}
        self.noisy = [self.model, *_noise_sources_of(self.trial)]
        # From here on seeds are for noise: everything that must be equal on all ranks is built.
        separate_noise(self.noisy, rank)
        if rank > 0:
            keras.utils.set_random_seed(rank_seed(job.seed, rank))
        if state is not None and not state.is_of(size, job.replicas):
            renew_noise(self.noisy, rank, state.step)
        self._training_dataset(state)
        self.validation = self._validation()
        self.context.require_all_used()
        if rank == 0 and checkpoint is None:
            require_savable(self.model, self.metadata(0, {}))
        with self.replicas.scope():
            self._complete_model()
        if checkpoint is not None:
            load_weights(self.model, checkpoint.model_path)
        elif rank == 0:
            self._begin()

    def _begin(self) -> None:
        """Starts a training on rank 0: takes weights of another model, reports enabled optimizations."""
        job = self.job
        if job.warm_start is not None:
            log_to_driver(f"warm_start {job.warm_start.uri}: {take_weights(self.model, job.warm_start)}")
        rate = [self.learning_rate.described] if self.learning_rate.described else []
        for line in [*job.optimizations.described(self.workers, job.schedule().length), *rate]:
            log_to_driver(line)

    def metadata(self, step: int, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Returns the metadata of a checkpoint after a step."""
        height, width = self.job.image_size
        return {
            "input": {"height": height, "width": width, "channels": 3},
            "labels": {str(number): name for number, name in enumerate(self.job.task.class_names)},
            "task": {"name": self.job.task.name, **self.described},
            "table": self.job.training_feed.location,
            "version": self.job.training_feed.version,
            "entrypoint": self.job.entrypoint.name,
            "hyperparameters": self.context.hyperparameters,
            "epoch": -(-step // self.job.training_feed.steps_per_epoch(self.job.batch_size)),
            "step": step,
            "run_id": self.job.run.run_id,
            "metrics": dict(metrics),
            "batch_size": self.job.batch_size,
            "ranks": self.size,
            "seed": self.job.seed,
        }

    def _complete_model(self) -> None:
        """Builds what Keras' `fit` builds from a first batch: optimizer, loss and metrics; no batch is drawn for it."""
        from .. import distributed as world

        model, rules = self.model, self.job.optimizations
        model.optimizer = distributed(model.optimizer, rules)
        world.callbacks.MetricAverageCallback().set_model(model)  # makes it compile for several ranks
        if self.replicas.count > 1:
            model.jit_compile = False  # XLA compiles no step that spans devices
            # The model is built below. Keras would build it again from the mean of the devices' first validation
            # batches, which fails where these have different numbers of rows.
            model._maybe_symbolic_build = lambda **_: None
        if self.workers > 1:
            leave_out_padding(model, self.workers)
        # One step at a time: boundaries are single steps.
        model.steps_per_execution = 1
        model._symbolic_build(data_batch=self.training.element_spec)
        if not model.optimizer.built:  # a second build would create a loss scale's variables twice
            model.optimizer.build(model.trainable_variables)
        if self.size > 1:
            check_metrics(model)
        check_goal(model, self.job.goal, validates=self.validation is not None)
        steps_per_epoch = self.job.training_feed.steps_per_epoch(self.job.batch_size)
        self.learning_rate = LearningRate(model.optimizer, rules, self.workers, steps_per_epoch)

    @property
    def workers(self) -> int:
        """Ranks, or replicas of this process, that share each batch."""
        return self.size * self.replicas.count

    def _training_dataset(self, state: TrainingState | None) -> None:
        feed, batch_size = self.job.training_feed.with_equal_weights(), self.job.batch_size
        given = self.trial.build_training_dataset()
        self.feeds = given is None
        if given is not None:
            self.training = without_padding(given) if self.workers == 1 else given
            return
        augments = type(self.trial).preprocess is not KerasTrial.preprocess
        start = state.position if state is not None else None
        self.training = feed.as_dataset(
            batch_size,
            self.rank,
            self.size,
            epochs=max(1, self._epochs() - (start["epoch"] if start is not None else 0)),
            image_size=self.job.image_size,
            start=start,
            replicas=self.replicas.count,
            preprocess=self.trial.preprocess if augments else None,
            **self.job.task.feed_options,
            **self.job.feed_options,
        )
        if self.workers == 1:
            self.training = without_padding(self.training)

    def _epochs(self) -> int:
        """Counts the epochs for which the training needs rows."""
        schedule = self.job.schedule()
        return -(-schedule.length // schedule.steps_per_epoch)

    def _validation(self) -> Validation | None:
        from .epoch_end import Validation, count_rows

        feed = self.context.validation_feed
        if feed is None:
            return None
        given = self.trial.build_validation_dataset()
        if given is not None:
            return Validation(given, *count_rows(given))
        share = (self.rank, self.size)
        options = {**self.job.task.feed_options, **self.job.feed_options}
        dataset = feed.as_dataset(self.job.batch_size, *share, image_size=self.job.image_size, **options)
        rows = rows_of_rank(feed.rows, *share)
        height, width = self.job.image_size
        if rows * height * width * 3 * 4 <= _CACHE_LIMIT_BYTES:
            dataset = dataset.cache()
        if options.get("bad_rows") == "skip":  # only the rows show how many count
            return Validation(dataset, *count_rows(dataset))
        return Validation(dataset, rows, batches_of_rank(feed.rows, self.job.batch_size, *share))


def _keras_trial(job: TrainingJob, context: TrialContext) -> KerasTrial:
    kind = job.entrypoint.load()
    if not issubclass(kind, KerasTrial):
        raise TrialError(f"entry point {job.entrypoint.name!r} is not a lakelens.KerasTrial; only those are trained")
    return kind(context)


def _noise_sources_of(trial: KerasTrial) -> list[NoiseSource]:
    """Finds a Trial's layers outside its model, even in lists and dicts, such as those that `preprocess` uses."""
    kinds = (keras.layers.Layer, keras.random.SeedGenerator)
    return [value for value in keras.tree.flatten(list(vars(trial).values())) if isinstance(value, kinds)]


def share_cores(local_size: int) -> None:
    """Gives each rank its share of the machine's cores; by default TensorFlow uses all of them in each rank."""
    import tensorflow as tf

    if local_size == 1 or os.environ.get("TF_NUM_INTRAOP_THREADS"):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // local_size))
    except RuntimeError:
        return  # TensorFlow is already in use, as in a notebook
