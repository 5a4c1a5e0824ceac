"""A Keras Trial that is ready to train: with model, optimizer, feed and validation built and checked."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from ....errors import LaunchError, TrialError
from ... import distributed as world
from ...checkpoints.keras_files import load_weights
from ...checkpoints.warm_start import take_weights
from ...configuration.sections import Optimizations
from ...feed.read_options import available_cores
from ...keras_internals import build_for, given_learning_rate, never_build_again
from ...rank.process_context import log_to_driver
from ...trials.keras_trial import KerasTrial
from ...trials.metrics import batches_of_rank, rows_of_rank
from ..training_state import rank_seed
from .checks import check_model, naming_cause, refuse_backups, refuse_sums, require_savable
from .metric_sums import check_goal, check_metrics
from .model_state import NoiseSource, renew_noise, separate_noise, writing_on_rank_0
from .validation import Validation, count_rows, leave_out_padding, without_padding

if TYPE_CHECKING:
    from ...checkpoints.checkpoint import Checkpoint
    from ...trials.context import TrialContext
    from ..job import TrainingJob
    from ..training_state import TrainingState


def remember_settings() -> Callable[[], None]:
    """Remembers the global settings; the result restores them, frees memory and forgets graphs, names and seeds."""
    dtype_policy, floatx, epsilon = keras.config.dtype_policy(), keras.config.floatx(), keras.config.epsilon()
    image_data_format, eager = keras.config.image_data_format(), tf.config.functions_run_eagerly()

    def restore() -> None:
        keras.utils.clear_session(free_memory=True)
        keras.config.set_floatx(floatx)
        keras.config.set_epsilon(epsilon)
        keras.config.set_image_data_format(image_data_format)
        keras.config.set_dtype_policy(dtype_policy)
        tf.config.run_functions_eagerly(eager)

    return restore


def share_cores(local_size: int) -> None:
    """Gives each rank its share of the machine's cores; by default TensorFlow uses all of them in each rank."""
    if local_size == 1 or os.environ.get("TF_NUM_INTRAOP_THREADS"):
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(max(1, available_cores() // local_size))
    except RuntimeError:
        return  # TensorFlow is already in use, as in a notebook


class LearningRate:
    """A training's learning rate: scaled by the number of workers, and raised to that linearly over its first steps."""

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, rules: Optimizations, workers: int, steps_per_epoch: int
    ) -> None:
        self._optimizer = optimizer
        self._steps = math.ceil(rules.warmup_epochs * steps_per_epoch)
        self._target = 0.0
        self.described = ""
        factor = rules.factor(workers)
        if rules.learning_rate_scaling == "none" and self._steps == 0:
            return
        schedule = given_learning_rate(getattr(optimizer, "inner_optimizer", optimizer))
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            raise TrialError(
                f"optimizations.learning_rate_scaling and warmup_epochs change a learning rate that is a number, and "
                f"the model's optimizer follows {type(schedule).__name__}; scale it in build_model, or remove the keys"
            )
        given = float(optimizer.learning_rate.numpy())  # the variable may have a copy on each device
        self._target = given * factor
        optimizer.learning_rate = self._target
        self.described = f"learning rate {self._target:g}"
        if rules.learning_rate_scaling != "none":
            self.described += f" = {given:g} x {factor:g} ({rules.learning_rate_scaling}, {workers} workers)"
        if self._steps:
            self.described += f", reached after {self._steps} steps of warm-up"

    def set_before(self, step: int) -> None:
        """Sets the rate of a step of the warm-up; later it leaves the rate alone."""
        if step < self._steps:
            self._optimizer.learning_rate = self._target * (step + 1) / self._steps


class Replicas:
    """The devices of this process that share each batch: its GPUs, or logical CPUs where it sees no GPU."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._strategy = _mirrored(count) if count > 1 else None

    def scope(self) -> AbstractContextManager[Any]:
        """Gives variables created inside a copy on each device."""
        return self._strategy.scope() if self._strategy is not None else contextlib.nullcontext()

    def shared(self, dataset: tf.data.Dataset) -> Any:
        """Distributes the rows of each batch to the devices."""
        if self._strategy is None:
            return dataset
        return self._strategy.experimental_distribute_dataset(dataset)


def _mirrored(count: int) -> tf.distribute.Strategy:
    gpus = tf.config.list_physical_devices("GPU")
    try:
        if not gpus:
            (cpu, *_) = tf.config.list_physical_devices("CPU")
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
            return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(count)])
        if len(gpus) < count:
            raise LaunchError(f"strategy mirrored: {count} slots, and TensorFlow sees {len(gpus)} GPUs in this process")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise LaunchError(
            f"strategy mirrored sets up devices, and this process has used TensorFlow before ({error}); train in a "
            "separate process"
        ) from error
    return tf.distribute.MirroredStrategy([f"GPU:{number}" for number in range(count)])


# Validation images of one rank are kept decoded up to here; more are decoded again each epoch.
_CACHE_LIMIT_BYTES = 256 << 20


class BuiltTrial:
    """Builds and checks Trial, model and datasets of a rank; the model has the checkpoint's weights on rank 0."""

    def __init__(
        self, job: TrainingJob, context: TrialContext, state: TrainingState | None, checkpoint: Checkpoint | None
    ) -> None:
        self._job, self._context = job, context
        self._rank, self._size = context.rank, context.size
        share_cores(world.local_size())
        _refuse_keys_of_torch(job)
        self.replicas = Replicas(job.replicas)
        if job.config.optimizations.mixed_precision is not None:
            keras.config.set_dtype_policy(f"mixed_{job.config.optimizations.mixed_precision}")
        keras.utils.set_random_seed(context.seed)
        with self.replicas.scope():
            self.trial = _keras_trial(job, context)
            self.model = self.trial.build_model()
            output = check_model(self.model, self.trial)
            callbacks = list(self.trial.keras_callbacks() or [])
            refuse_backups(callbacks)
            self.callbacks = writing_on_rank_0(callbacks, context.rank)
        self.described = context.task.describe_output(output)
        self.noisy = [self.model, *_noise_sources_of(self.trial)]
        # From here on seeds are for noise: everything that must be equal on all ranks is built.
        separate_noise(self.noisy, context.rank)
        if context.rank > 0:
            keras.utils.set_random_seed(rank_seed(context.seed, context.rank))
        if state is not None and not state.is_of(context.size, job.replicas):
            renew_noise(self.noisy, context.rank, state.step)
        self._training_dataset(state)
        self.validation = self._validation()
        context.require_all_used()
        if context.rank == 0 and checkpoint is None:
            require_savable(self.model, context.image_size)
        with self.replicas.scope():
            self._complete_model()
        if checkpoint is not None:
            load_weights(self.model, checkpoint.model_path)
        elif context.rank == 0:
            self._begin()

    def _begin(self) -> None:
        """Starts a training on rank 0: takes weights of another model, reports enabled optimizations."""
        job = self._job
        if job.warm_start is not None:
            log_to_driver(f"warm_start {job.warm_start.uri}: {take_weights(self.model, job.warm_start)}")
        rate = [self.learning_rate.described] if self.learning_rate.described else []
        for line in [*job.config.optimizations.described(self._workers, job.schedule.length), *rate]:
            log_to_driver(line)

    def _complete_model(self) -> None:
        """Builds what Keras' `fit` builds from a first batch: optimizer, loss and metrics; no batch is drawn for it."""
        model, rules = self.model, self._job.config.optimizations
        model.optimizer = world.DistributedOptimizer(
            model.optimizer,
            compression=world.Compression[rules.gradient_compression],
            backward_passes_per_step=rules.aggregation_frequency,
            average_aggregated_gradients=True,
        )
        world.callbacks.MetricAverageCallback().set_model(model)  # makes it compile for several ranks
        if self.replicas.count > 1:
            model.jit_compile = False  # XLA compiles no step that spans devices
            never_build_again(model)
        if self._workers > 1:
            refuse_sums(model)
            leave_out_padding(model, self._workers)
        # One step at a time: boundaries are single steps.
        model.steps_per_execution = 1
        build_for(model, self.training.element_spec)
        if not model.optimizer.built:  # a second build would create a loss scale's variables twice
            model.optimizer.build(model.trainable_variables)
        if self._size > 1:
            check_metrics(model)
        counted = self._context.task.metric_names
        check_goal(model, self._job.config.goal, validates=self.validation is not None, counted=counted)
        self.learning_rate = LearningRate(model.optimizer, rules, self._workers, self._job.schedule.steps_per_epoch)

    @property
    def _workers(self) -> int:
        """Ranks, or replicas of this process, that share each batch."""
        return self._size * self.replicas.count

    def _training_dataset(self, state: TrainingState | None) -> None:
        feed = self._job.training_feed.with_equal_weights()
        given = self.trial.build_training_dataset()
        self.feeds = given is None  # Whether batches come from the job's feed, not from a custom dataset
        if given is not None:
            self.training = without_padding(given) if self._workers == 1 else given
            return
        augments = type(self.trial).preprocess is not KerasTrial.preprocess
        start = state.position if state is not None else None
        self.training = feed.as_dataset(
            self._context.global_batch_size,
            self._rank,
            self._size,
            epochs=max(1, self._job.schedule.epochs - (start["epoch"] if start is not None else 0)),
            image_size=self._context.image_size,
            start=start,
            replicas=self.replicas.count,
            preprocess=self.trial.preprocess if augments else None,
            seeded=True,
            **self._context.task.feed_options,
            **self._job.config.data.dataset_options,
        )
        if self._workers == 1:
            self.training = without_padding(self.training)

    def _validation(self) -> Validation | None:
        feed = self._context.validation_feed
        if feed is None:
            return None
        with naming_cause(feed, self._context.task):
            given = self.trial.build_validation_dataset()
            if given is not None:
                return Validation(given, *count_rows(given))
            share = (self._rank, self._size)
            batch, size = self._context.global_batch_size, self._context.image_size
            options = {**self._context.task.feed_options, **self._job.config.data.dataset_options}
            dataset = feed.as_dataset(batch, *share, image_size=size, **options)
            rows = rows_of_rank(feed.rows, *share)
            if rows * size[0] * size[1] * 3 * 4 <= _CACHE_LIMIT_BYTES:
                dataset = dataset.cache()
            if options.get("bad_rows") == "skip":  # only the rows show how many count
                return Validation(dataset, *count_rows(dataset))
            return Validation(dataset, rows, batches_of_rank(feed.rows, batch, *share))


def _refuse_keys_of_torch(job: TrainingJob) -> None:
    rules = job.config.optimizations
    if rules.gradient_clip_norm is not None:
        raise TrialError("optimizations.gradient_clip_norm is for PyTorch; give a Keras optimizer global_clipnorm")
    if rules.sync_batch_norm:
        raise TrialError(
            "optimizations.sync_batch_norm is for PyTorch; build the model with hvd.SyncBatchNormalization"
        )


def _keras_trial(job: TrainingJob, context: TrialContext) -> KerasTrial:
    kind = job.entrypoint.load()
    if not issubclass(kind, KerasTrial):
        raise TrialError(f"entry point {job.entrypoint.name!r} is not a lakelens.KerasTrial")
    return kind(context)


def _noise_sources_of(trial: KerasTrial) -> list[NoiseSource]:
    """Finds a Trial's layers outside its model, even in lists and dicts, such as those that `preprocess` uses."""
    kinds = (keras.layers.Layer, keras.random.SeedGenerator)
    return [value for value in keras.tree.flatten(list(vars(trial).values())) if isinstance(value, kinds)]
