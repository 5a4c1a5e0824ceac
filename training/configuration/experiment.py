"""The experiment file as one pydantic model: everything about a training, from the file to the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from ...errors import ConfigurationError
from ...options import near_miss
from ..tasks.registry import DEFAULT_TASK, TASKS
from ..tasks.task import Task
from ..trials.entrypoint import DEFAULT_ENTRYPOINT
from ..trials.metrics import Goal
from .lengths import Length
from .problems import configuration_error
from .searcher import SINGLE, SearcherConfig
from .sections import (
    CheckpointStorage,
    Data,
    EarlyStopping,
    Optimizations,
    Reproducibility,
    Resources,
    Section,
    Tracking,
)
from .space import DEFAULT_BATCH_SIZE, GLOBAL_BATCH_SIZE, Hyperparameters, constants
from .yaml_file import Document, read_yaml, with_keys, with_overrides

_INTERPRETERS = ("python", "bash", "sh", "torchrun", "horovodrun")


class ExperimentConfig(Section):
    """One experiment: Trial, rows, length, resources, checkpoints and tracking.

    Examples:
        >>> config = lakelens.ExperimentConfig.read({"data": {"table": "tables/photos"}})
        >>> config.searcher.name, config.global_batch_size
        ('single', 64)
    """

    name: str | None = Field(None, description="Name of the run; the entry point's name when null.")
    description: str = Field("", description="For readers.")
    labels: list[str] = Field(default_factory=list, description="For readers, kept as tags of the run.")
    job: str | None = Field(
        None, description="Key of a job: a repeated call returns, follows or resumes the run of the first one."
    )
    entrypoint: str = Field(
        DEFAULT_ENTRYPOINT, min_length=1, description="The Trial: `module:Class` or `file.py:Class`."
    )
    task: str = Field(DEFAULT_TASK, description=f"What the labels are: {', '.join(f'`{name}`' for name in TASKS)}.")
    data: Data = Field(description="Which rows of which table.")
    hyperparameters: Hyperparameters = Field(
        default_factory=dict,
        description="Read by `context.get_hparam`. Plain values, or spaces for a search; `global_batch_size` defaults "
        "to 64.",
    )
    searcher: SearcherConfig = Field(
        default_factory=SearcherConfig, description="Which trials, how long, which metric decides."
    )
    resources: Resources = Field(default_factory=Resources, description="Where and on how many slots.")
    max_restarts: int = Field(0, ge=0, description="Restarts from the last checkpoint after a rank failed, per trial.")
    continue_from: str | None = Field(
        None, description="Id of a finished run to continue, with its whole state, to a larger max_length."
    )
    warm_start: str | None = Field(
        None, description="Weights to start with: `runs:/ID`, `models:/NAME@ALIAS` or a checkpoint's folder."
    )
    checkpoint_policy: Literal["best", "all", "none"] = Field(
        "best", description="At which validations a checkpoint is written: better ones, all, or none but the last."
    )
    checkpoint_storage: CheckpointStorage = Field(
        default_factory=CheckpointStorage, description="Where checkpoints are."
    )
    min_validation_period: Length = Field(
        default_factory=lambda: Length(epochs=1), description="Length between validations."
    )
    min_checkpoint_period: Length | None = Field(
        None,
        description="Length between checkpoints for restarts, added to those of `checkpoint_policy`; null for none.",
    )
    perform_initial_validation: bool = Field(False, description="Validate before the first step too.")
    reproducibility: Reproducibility = Field(default_factory=Reproducibility, description="Seed and determinism.")
    optimizations: Optimizations = Field(default_factory=Optimizations, description="Gradients and learning rate.")
    early_stopping: EarlyStopping | None = Field(None, description="When to stop early; null trains to the end.")
    tracking: Tracking = Field(default_factory=Tracking, description="MLflow store and experiment.")

    @field_validator("task")
    @classmethod
    def _is_known(cls, task: str) -> str:
        if task not in TASKS:
            raise ValueError(f"must be one of {', '.join(map(repr, TASKS))}{near_miss(task, TASKS)}")
        return task

    @field_validator("entrypoint", mode="before")
    @classmethod
    def _is_no_command(cls, entrypoint: Any) -> Any:
        words = entrypoint if isinstance(entrypoint, list) else str(entrypoint).split()
        if len(words) > 1 and (Path(str(words[0])).name.startswith(_INTERPRETERS) or "-m" in words):
            named = words[words.index("--trial") + 1 :][:1] if "--trial" in words else []
            raise ValueError(
                "is a command, as Determined's files have it; lakelens starts the ranks itself, as resources say. Give "
                f"the Trial class: {named[0] if named else 'module:Class or path/to/file.py:Class'}"
            )
        return entrypoint

    @classmethod
    def read(
        cls,
        source: str | Path | Mapping[str, Any] | ExperimentConfig,
        overrides: Iterable[str] = (),
        changes: Iterable[Mapping[str, Any]] = (),
    ) -> ExperimentConfig:
        """Reads an experiment from a YAML file, a dict or another config.

        Args:
            source: Path of the file, the keys as a mapping, or a config.
            overrides: `a.b=VALUE`, applied in order after `changes`; the values are YAML.
            changes: Keys that replace those of the source, section by section, applied in order.

        Raises:
            ConfigurationError: If a key is unknown, missing or contradicts another; gives for each problem the path of
                the key, its line, the value, the rule and the nearest known key.
        """
        if isinstance(source, ExperimentConfig):
            source = source.model_dump(exclude_unset=True)
        document = Document("config", dict(source)) if isinstance(source, Mapping) else read_yaml(source)
        for change in changes:
            document = with_keys(document, change)
        document = with_overrides(document, overrides)
        try:
            return cls.model_validate(document.values)
        except ValidationError as error:
            raise configuration_error(cls, document, error) from None

    @model_validator(mode="after")
    def _fits_together(self) -> ExperimentConfig:
        metric = self.searcher.metric
        if metric is not None and metric.startswith("val_") and self.data.validation_split is None:
            raise ValueError(
                f"searcher.metric is {metric} and data.validation_split is null; give a split, or a training metric"
            )
        longest = self.searcher.max_length
        for name in ("min_validation_period", "min_checkpoint_period"):
            period: Length | None = getattr(self, name)
            if period is not None and period.unit == longest.unit and period.amount > longest.amount:
                raise ValueError(
                    f"{name} ({period}) is longer than searcher.max_length ({longest}); it would never be reached"
                )
        if self.searcher.name != SINGLE and self.resources.slots_per_trial == 0:
            raise ValueError(
                "resources.slots_per_trial 0 is every slot of the cluster, which one training takes; a search shares "
                "slots: give the number that each trial takes"
            )
        if self.searcher.name == SINGLE and self.global_batch_size < self.resources.slots_per_trial:
            raise ValueError(
                f"hyperparameters.global_batch_size {self.global_batch_size} is less than resources.slots_per_trial "
                f"{self.resources.slots_per_trial}; some slots would have no image in any step"
            )
        if self.resources.strategy == "mirrored" and self.optimizations.aggregation_frequency > 1:
            raise ValueError(
                "optimizations.aggregation_frequency adds gradients up in processes with one device each; "
                "resources.strategy mirrored is one process; choose horovod_local or horovod_cluster"
            )
        if self.perform_initial_validation and self.data.validation_split is None:
            raise ValueError("perform_initial_validation needs rows to validate on; data.validation_split is null")
        self._require_the_best_to_be_kept()
        if self.continue_from is not None and self.searcher.name != SINGLE:
            raise ValueError(
                f"continue_from continues one run, and searcher {self.searcher.name} runs many; use warm_start, "
                "or searcher single"
            )
        if self.continue_from is not None and self.warm_start is not None:
            raise ValueError(
                "continue_from takes the whole state of a run and warm_start its weights alone; give one of them"
            )
        self.goal  # noqa: B018  # checked here, so that a metric without a direction is found before anything runs
        return self

    def _require_the_best_to_be_kept(self) -> None:
        if self.early_stopping is None or not self.early_stopping.restore_best_weights:
            return
        if self.checkpoint_policy == "none":
            raise ValueError(
                "early_stopping.restore_best_weights takes the best checkpoint, and checkpoint_policy none writes "
                "none; choose best or all"
            )
        if self.checkpoint_storage.save_trial_best == 0:
            raise ValueError(
                "early_stopping.restore_best_weights takes the best checkpoint, and checkpoint_storage.save_trial_best "
                "is 0; keep 1"
            )

    @property
    def goal(self) -> Goal:
        """The metric that decides, and its direction.

        Raises:
            ValueError: If the direction is neither known nor set by `smaller_is_better`.
        """
        default = "val_loss" if self.data.validation_split is not None else "loss"
        return self.searcher.model_copy(update={"metric": self.searcher.metric or default}).goal

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that the model takes, in pixels.

        Raises:
            ValueError: If `data.image_size` is null: only a resolved experiment knows the stored size.
        """
        size = self.data.image_size
        if size is None:
            raise ValueError("data.image_size is null: only a resolved experiment knows the stored size")
        sides = [size] if isinstance(size, int) else size
        return sides[0], sides[-1]

    @property
    def global_batch_size(self) -> int:
        """Images per step over all ranks of a single training.

        Raises:
            ValueError: If it is a space to draw from.
        """
        return int(constants(self.hyperparameters).get(GLOBAL_BATCH_SIZE, DEFAULT_BATCH_SIZE))

    @property
    def trial_hyperparameters(self) -> dict[str, Any]:
        """The hyperparameters of the Trial of a single training: all but the batch size.

        Raises:
            ValueError: If one is a space to draw from.
        """
        values = constants(self.hyperparameters)
        values.pop(GLOBAL_BATCH_SIZE, None)
        return values

    def make_task(self) -> Task:
        """Makes the task of the labels, for the classes that `data.class_names` lists."""
        return TASKS[self.task](self.data.class_names or ())


def require_single(config: ExperimentConfig) -> None:
    """Checks that a config describes one training."""
    if config.searcher.name != SINGLE:
        raise ConfigurationError(
            f"searcher.name is {config.searcher.name}, which runs many trainings: use lakelens.search, or "
            "lakelens search run"
        )
