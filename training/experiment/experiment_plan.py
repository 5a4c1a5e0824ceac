"""The plan of a training or a search, before it has a run: its experiment, resolved, its rows and its ranks."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import EmptyFeedError, InvalidArgumentError, NotADeltaTableError, NotAnImageTableError
from ...locations import absolute, absolute_path, is_table_name
from ...spark.session import SessionSource, opened, spark_session
from ...tracking.datasets import TableVersion
from ...tracking.runs import RunReference
from ..checkpoints.warm_start import WarmStart
from ..configuration.experiment import ExperimentConfig
from ..configuration.searcher import SINGLE
from ..configuration.space import largest_global_batch_size
from ..feed.feed import DeltaFeed
from ..feed.image_plan import size_of_all_images
from ..feed.read_options import image_size_of
from ..segments.job import Schedule, TrainingJob
from ..trials.entrypoint import EntryPoint
from .run_folder import checkpoint_root
from .strategies import Strategy

if TYPE_CHECKING:
    from ..configuration.sections import Data

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExperimentPlan:
    """An experiment that can be started."""

    # The experiment, with absolute paths, the table's version, image size, class names and strategy
    config: ExperimentConfig
    entrypoint: EntryPoint  # The Trial
    data: TrialData  # The rows
    strategy: Strategy  # Where the ranks of a trial run

    @classmethod
    def of(
        cls, config: ExperimentConfig, *, entrypoint: EntryPoint | None = None, spark: SessionSource | None = None
    ) -> ExperimentPlan:
        """Resolves an experiment: table, version, splits, lengths and ranks."""
        entry = entrypoint or EntryPoint.parse(config.entrypoint)
        root = checkpoint_root(config.checkpoint_storage.path)
        data = TrialData.open(config, spark)
        strategy = Strategy.of(config, spark, entry.framework)
        update = {
            "entrypoint": entry.name,
            "data": data.resolved(config.data),
            "checkpoint_storage": config.checkpoint_storage.model_copy(update={"path": str(root)}),
            "resources": strategy.resolved(config.resources),
        }
        plan = cls(config.model_copy(update=update), entry, data, strategy)
        for warning in plan.warnings:
            logger.warning(warning)
        if config.searcher.name == SINGLE:
            plan.schedule  # noqa: B018  # raises before anything starts
        return plan

    @property
    def ranks(self) -> int:
        """Number of ranks: negative on the driver, positive as Spark tasks, 0 for every slot."""
        return self.strategy.np

    @property
    def slots_per_trial(self) -> int:
        """Slots that a trial takes, all at once."""
        return abs(self.strategy.np) * self.strategy.replicas

    @property
    def root(self) -> Path:
        """The folder of the runs' folders."""
        return Path(self.config.checkpoint_storage.path)

    @property
    def schedule(self) -> Schedule:
        """The steps of a single training."""
        return Schedule.of(self.config, self.data.training.steps_per_epoch(self.config.global_batch_size))

    @property
    def ranks_recorded(self) -> int | str:
        """Number of ranks, as the run's parameter shows it."""
        return abs(self.ranks) or "every slot"

    @property
    def warnings(self) -> list[str]:
        """Probable mistakes that do not prevent training."""
        found, size = [], largest_global_batch_size(self.config.hyperparameters)
        training, validation = self.data.training, self.data.validation
        split = f"training split ({training.split or 'the whole table'})"
        if size > training.rows:
            found.append(
                f"global_batch_size {size} is larger than the {split}, which has {training.rows} rows: an epoch is one "
                f"step on {training.rows} rows"
            )
        if validation is not None and training.split in (None, validation.split):
            found.append(
                f"the {split} contains the validation split ({validation.split}): validation metrics are those of rows "
                "that the model was trained on; give another data.validation_split, or null"
            )
        return found

    @property
    def params(self) -> dict[str, object]:
        """MLflow parameters of a single training's run, in addition to the hyperparameters."""
        config, stopping, size = self.config, self.config.early_stopping, self.data.image_size
        return {
            "epochs": self.schedule.epochs,
            "global_batch_size": config.global_batch_size,
            "ranks": self.ranks_recorded,
            "strategy": self.strategy.name,
            "seed": config.reproducibility.experiment_seed,
            "patience": stopping.patience if stopping is not None else None,
            "train_split": config.data.train_split,
            "validation_split": config.data.validation_split,
            "image_size": f"{size[0]}x{size[1]}",
        }

    def job(self, run: RunReference, warm_start: WarmStart | None = None, **more: Any) -> TrainingJob:
        """Returns the training job of every rank."""
        return TrainingJob(
            config=self.config,
            entrypoint=self.entrypoint,
            training_feed=self.data.training,
            validation_feed=self.data.validation,
            folder=self.root / run.run_id,
            run=run,
            replicas=self.strategy.replicas,
            warm_start=warm_start,
            **more,
        )


@dataclass(frozen=True)
class TrialData:
    """The rows of an experiment."""

    training: DeltaFeed  # Rows to train on
    validation: DeltaFeed | None  # Rows to validate on, of the same version; None if there is none
    image_size: tuple[int, int]  # Height and width to resize images to
    class_names: tuple[str, ...]  # Names of the classes by label number

    @classmethod
    def open(cls, config: ExperimentConfig, spark: SessionSource | None = None) -> TrialData:
        """Opens the table at its version."""
        data, seed, task = config.data, config.reproducibility.experiment_seed, config.make_task()
        options = {**data.feed_options, **task.table_options}
        training = DeltaFeed(location_of(data.table, spark), data.version, data.train_split, seed, **options)
        task.check_feed(training)
        validation = None
        if data.validation_split is not None:
            try:
                validation = DeltaFeed(
                    training.location, training.version, data.validation_split, shuffle=False, **options
                )
            except (EmptyFeedError, InvalidArgumentError) as error:
                raise type(error)(f"{error}; data.validation_split: null trains without validation") from error
        feeds = [training] if validation is None else [training, validation]
        size = (
            size_of_all_images([feed.plan for feed in feeds])
            if data.image_size is None
            else image_size_of(data.image_size)
        )
        return cls(training, validation, size, _class_names(training, data))

    def resolved(self, data: Data) -> Data:
        """Returns the experiment's `data` as it was resolved, with an absolute path of the cache."""
        update = {
            "table": self.training.location,
            "version": self.training.version,
            "image_size": list(self.image_size),
            "class_names": list(self.class_names),
        }
        if isinstance(data.cache, str):
            update["cache"] = absolute_path(data.cache)
        return data.model_copy(update=update)

    def described(self) -> TableVersion:
        """Gives what the run records about the rows."""
        feeds = [self.training] if self.validation is None else [self.training, self.validation]
        rows = {feed.split or "all": feed.rows for feed in feeds}
        files = {path for feed in feeds for path in feed.plan.files.paths}
        version = self.training.version
        digest = hashlib.sha256("\n".join([str(version), *sorted(files)]).encode()).hexdigest()
        table_id = self.training.plan.snapshot.table_id
        return TableVersion(self.training.location, version, digest[:32], rows, table_id)


def location_of(table: str | Path, spark: SessionSource | None) -> str:
    """Returns the table's path; Spark resolves a catalog name."""
    place = absolute(table)
    if not is_table_name(place):
        return place
    from ...etl.spark.catalog import is_delta_table, path_of

    session = opened(spark) or spark_session()
    if not is_delta_table(session, place):
        raise NotADeltaTableError(f"the catalog has no Delta table {place}; give schema.table, a path or a URI")
    return absolute(path_of(session, place))


def _class_names(feed: DeltaFeed, data: Data) -> tuple[str, ...]:
    names = data.class_names if data.class_names is not None else feed.class_names
    if not names:
        raise NotAnImageTableError(
            f"{feed.location}@{feed.version} has no names of its classes; set data.class_names, one per label number"
        )
    return tuple(name or str(number) for number, name in enumerate(names))
