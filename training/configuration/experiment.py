"""The experiment file as pydantic models: every key, its type, its default, its meaning.

The vocabulary is Determined's where it has one (https://docs.determined.ai, "Experiment Configuration Reference").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ...errors import ConfigurationError, InvalidArgumentError
from ...locations import table_and_version
from ...table import version_of
from ..trials.entrypoint import DEFAULT_ENTRYPOINT
from ..trials.metrics import Goal
from .lengths import Length
from .problems import configuration_error
from .searcher import SINGLE, SearcherConfig
from .space import DEFAULT_BATCH_SIZE, GLOBAL_BATCH_SIZE, Hyperparameters, Space, constants
from .yaml_file import Document, read_yaml, with_overrides

_INTERPRETERS = ("python", "bash", "sh", "torchrun", "horovodrun")


class _Section(BaseModel):
    # A recorded config keeps infinities of hyperparameters.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


class Columns(_Section):
    """Names of the table's columns, for tables that lakelens did not write."""

    image: str = Field("image", description="Image bytes.")
    label: str = Field("label", description="Class numbers.")
    split: str = Field("split", description="Split names.")
    format: str = Field("format", description="`jpeg`, `png` or `raw_rgb`; need not exist.")
    boxes: str = Field("annotations", description="Boxes; need not exist.")


class Data(_Section):
    """Which rows of which table."""

    table: str = Field(min_length=1, description="Path, URI or catalog.schema.table, also as table@version.")
    version: int | str = Field(
        "latest",
        description="Version number, `latest`, a time or a pin. The number is always recorded.",
    )
    train_split: str | None = Field("train", description="Split to train on; null is the whole table.")
    validation_split: str | None = Field("validation", description="Split to validate on; null for no validation.")
    filters: dict[str, Any] | None = Field(None, description="Values of columns that rows must have, in both splits.")
    columns: Columns = Field(default_factory=Columns, description="Column names.")
    image_size: int | list[int] | None = Field(
        None, description="Side, or [height, width], to resize images to; null keeps the stored size."
    )
    class_names: list[str] | None = Field(None, description="Names by label number, for tables that have none.")
    storage_options: dict[str, str] = Field(
        default_factory=dict, description="Access to an object store, under delta-rs' names; values may be `env:NAME`."
    )
    cache: bool | str = Field(
        False,
        description="Keep decoded images in a memory-mapped file on local disk: true for `~/.cache/lakelens/decoded`, "
        "or a folder.",
    )
    cache_bytes: int = Field(
        64 << 30, ge=1, description="Most bytes of the cache; the least recently used files are removed."
    )
    bad_rows: Literal["error", "skip"] = Field(
        "error",
        description="A row that cannot be decoded or has no label: `error` ends the training, `skip` "
        "leaves it out and logs it.",
    )
    read_timeout_s: float = Field(45.0, gt=0, description="Seconds after which a read without an answer is an error.")

    @model_validator(mode="before")
    @classmethod
    def _names_one_version(cls, keys: Any) -> Any:
        """Takes `table: photos@1` for `table: photos` and `version: 1`."""
        table = keys.get("table") if isinstance(keys, dict) else None
        location, version = table_and_version(table) if isinstance(table, str) else ("", None)
        if version is None:
            return keys
        if "version" in keys and version_of(keys["version"]) != version_of(version):
            raise ValueError(f"table {table!r} names a version, and version {keys['version']!r} does too; give one")
        return {**keys, "table": location, "version": version}

    @field_validator("version")
    @classmethod
    def _is_no_negative_number(cls, version: int | str) -> int | str:
        if isinstance(version, int) and version < 0:
            raise ValueError("versions count from 0; `latest` is the newest")
        return int(version) if isinstance(version, str) and version.isdigit() else version

    @field_validator("image_size")
    @classmethod
    def _is_a_size(cls, size: int | list[int] | None) -> int | list[int] | None:
        sides = [size] if isinstance(size, int) else size
        if sides is not None and (len(sides) not in (1, 2) or any(side < 1 for side in sides)):
            raise ValueError("give one side or [height, width], in pixels above 0")
        return size


class Resources(_Section):
    """Where and on how many slots a trial runs."""

    slots_per_trial: int = Field(1, ge=1, description="Ranks of a trial: processes, GPUs or Spark slots.")
    max_slots: int | None = Field(None, ge=1, description="Slots that all trials of a search may use together.")
    priority: int | None = Field(
        None, ge=1, le=99, description="Priority among the searches of one Spark application; 1 is first."
    )
    strategy: Literal["auto", "single", "mirrored", "horovod_local", "horovod_cluster"] = Field(
        "auto",
        description="`single`: one process. `mirrored`: tf.distribute over this machine's GPUs. `horovod_local`: "
        "processes on the driver. `horovod_cluster`: a Spark barrier stage. `auto` chooses, and shows why.",
    )
    use_gpu: bool | None = Field(None, description="One GPU per rank; null uses GPUs where there are any.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the ranks.")
    slots_wait_s: float = Field(60.0, ge=0, description="Seconds to wait for free slots.")
    stall_timeout_s: float = Field(60.0, gt=0, description="Seconds without progress after which a rank fails the job.")
    driver_port: int | None = Field(
        None, ge=1, le=65535, description="Port of the driver that tasks connect to; null takes a free one."
    )

    @model_validator(mode="after")
    def _is_possible(self) -> Resources:
        if self.strategy == "single" and self.slots_per_trial > 1:
            raise ValueError(
                f"strategy single is one process and slots_per_trial is {self.slots_per_trial}; "
                "choose mirrored, horovod_local, horovod_cluster or auto"
            )
        if self.driver_port is not None and self.strategy in ("single", "mirrored", "horovod_local"):
            raise ValueError(
                f"driver_port {self.driver_port} is for slots on executors, and strategy {self.strategy} runs on this "
                "machine; remove it, or choose horovod_cluster"
            )
        if self.max_slots is not None and self.max_slots < self.slots_per_trial:
            raise ValueError(f"max_slots {self.max_slots} is less than slots_per_trial {self.slots_per_trial}")
        return self


class CheckpointStorage(_Section):
    """Where checkpoints are, and which are kept: the union of the three rules."""

    path: str = Field("lakelens-checkpoints", min_length=1, description="Folder that the driver and rank 0 share.")
    save_experiment_best: int = Field(0, ge=0, description="Best checkpoints kept over the whole experiment.")
    save_trial_best: int = Field(1, ge=0, description="Best checkpoints kept of each trial.")
    save_trial_latest: int = Field(1, ge=0, description="Latest checkpoints kept of each trial.")

    @model_validator(mode="after")
    def _keeps_one(self) -> CheckpointStorage:
        if self.save_experiment_best + self.save_trial_best + self.save_trial_latest == 0:
            raise ValueError(
                "save_experiment_best, save_trial_best and save_trial_latest are 0, which keeps no checkpoint, but a "
                "run's model needs one; set one of them to 1"
            )
        return self


class Reproducibility(_Section):
    """Settings for repeatable trainings."""

    experiment_seed: int = Field(
        0, ge=0, lt=2**31, description="Seed of weights, row order, augmentation and searches."
    )
    deterministic: bool = Field(
        False,
        description="One thread per rank and deterministic operations of TensorFlow, so that a repeated or resumed "
        "training on CPU is bit-for-bit identical. Slower: a rank uses one core.",
    )

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the ranks."""
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        return {**threads, "TF_DETERMINISTIC_OPS": "1"} if self.deterministic else {}


class Optimizations(_Section):
    """How gradients are computed and combined."""

    mixed_precision: Literal["float16", "bfloat16"] | None = Field(None, description="Keras' mixed precision policy.")
    aggregation_frequency: int = Field(1, ge=1, description="Batches whose gradients are added up before one update.")
    gradient_compression: Literal["none", "fp16"] = Field("none", description="Compression of gradients between ranks.")
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="Factor on the learning rate by the number of ranks: 1, n or the square root of n."
    )
    warmup_epochs: float = Field(
        0.0, ge=0, description="Epochs over which the learning rate rises to its scaled value."
    )


class EarlyStopping(_Section):
    """When to stop before `max_length`."""

    patience: int = Field(ge=1, description="Validations without improvement after which training stops.")
    min_delta: float = Field(0.0, ge=0, description="Smallest change of the metric that counts as an improvement.")
    restore_best_weights: bool = Field(False, description="Restore the best weights when training ends.")


class Tracking(_Section):
    """MLflow store and experiment of the run."""

    uri: str | None = Field(None, description="MLflow store; null takes MLFLOW_TRACKING_URI, or Databricks' own.")
    experiment: str = Field("lakelens", min_length=1, description="MLflow experiment; created if it does not exist.")
    register_as: str | None = Field(None, description="Registers the best model under this name.")


class ExperimentConfig(_Section):
    """One experiment: Trial, rows, length, resources, checkpoints and tracking."""

    name: str | None = Field(None, description="Name of the run; the entry point's name when null.")
    description: str = Field("", description="For readers.")
    labels: list[str] = Field(default_factory=list, description="For readers, kept as tags of the run.")
    entrypoint: str = Field(
        DEFAULT_ENTRYPOINT, min_length=1, description="The Trial: `module:Class` or `file.py:Class`."
    )
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
    ) -> ExperimentConfig:
        """Reads an experiment from a YAML file, a dict or another config.

        Args:
            source: Path of the file, the keys as a mapping, or a config.
            overrides: `a.b=VALUE`, applied in order; the values are YAML.

        Raises:
            ConfigurationError: If a key is unknown, missing or contradicts another; gives for each problem the path of
                the key, its line, the value, the rule and the nearest known key.
        """
        if isinstance(source, ExperimentConfig):
            document = Document("config", source.model_dump(exclude_unset=True))
        elif isinstance(source, Mapping):
            document = Document("config", dict(source))
        else:
            document = read_yaml(source)
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
            ValueError: If its name does not imply the direction and `smaller_is_better` is not set.
        """
        metric = self.searcher.metric or ("val_loss" if self.data.validation_split is not None else "loss")
        smaller = self.searcher.smaller_is_better
        try:
            return Goal.of(metric, None if smaller is None else "min" if smaller else "max")
        except InvalidArgumentError:
            raise ValueError(
                f"searcher.metric {metric} does not imply whether smaller is better; set searcher.smaller_is_better"
            ) from None

    @property
    def global_batch_size(self) -> int:
        """Images per step over all ranks of a single training.

        Raises:
            ValueError: If it is a space to draw from.
        """
        return int(constants(self.hyperparameters).get(GLOBAL_BATCH_SIZE, DEFAULT_BATCH_SIZE))


def require_single(config: ExperimentConfig, name: str) -> None:
    """Checks that a config describes one training.

    Raises:
        ConfigurationError: If its searcher runs many; names the command that does.
    """
    if config.searcher.name != SINGLE:
        spaces = [".".join(path) for path, leaf in Space.read(config.hyperparameters).leaves() if leaf.type != "const"]
        overrides = [
            f"searcher.name={SINGLE}",
            *(f"searcher.{key}=null" for key in config.searcher.keys_of_a_search()),
            *(f"hyperparameters.{space}=VALUE" for space in spaces),
        ]
        raise ConfigurationError(
            f"{name}: searcher.name is {config.searcher.name}, which runs many trainings: lakelens search {name}. "
            f"For one training: {' '.join(f'--set {override}' for override in overrides)}"
        )
