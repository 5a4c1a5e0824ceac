"""The sections of the experiment file as pydantic models: every key, its type, its default, its meaning.

The vocabulary is Determined's where it has one (https://docs.determined.ai, "Experiment Configuration Reference").
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ...locations import table_and_version
from ...table import version_of
from ...tracking.names import require_model_name
from ..checkpoints.retention import Retention


class Section(BaseModel):
    """A mapping of known keys, none of which is converted silently."""

    # A recorded config keeps infinities of hyperparameters.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


class Columns(Section):
    """Names of the table's columns, for tables that lakelens did not write."""

    image: str = Field("image", description="Image bytes.")
    label: str = Field("label", description="Class numbers.")
    split: str = Field("split", description="Split names.")
    format: str = Field("format", description="`jpeg`, `png` or `raw_rgb`; need not exist.")
    boxes: str = Field("annotations", description="Boxes; need not exist.")


class Data(Section):
    """Which rows of which table."""

    table: str = Field(min_length=1, description="Path, URI or catalog.schema.table, also as table@version.")
    version: int | str = Field(
        "latest", description="Version number, `latest`, a time or a pin. The number is always recorded."
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
    box_limit: int = Field(
        200,
        ge=1,
        description="Most boxes of an image in task `detection`; the smallest beyond it are left out and counted.",
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

    @property
    def feed_options(self) -> dict[str, Any]:
        """Options of `DeltaFeed`: which columns and rows."""
        columns = self.columns
        return {
            "image_column": columns.image,
            "label_column": columns.label,
            "split_column": columns.split,
            "format_column": columns.format,
            "boxes_column": columns.boxes,
            "filters": self.filters,
            "storage_options": dict(self.storage_options),
        }

    @property
    def dataset_options(self) -> dict[str, Any]:
        """Options of `DeltaFeed.as_dataset`: how rows are read."""
        return {
            name: getattr(self, name) for name in ("box_limit", "bad_rows", "read_timeout_s", "cache", "cache_bytes")
        }


class Resources(Section):
    """Where and on how many slots a trial runs."""

    slots_per_trial: int = Field(
        1,
        ge=0,
        description="Ranks of a trial: processes, GPUs or Spark slots; 0 is every slot of the cluster, for a training "
        "with `horovod_cluster`.",
    )
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
        None,
        ge=1,
        le=65535,
        description="Port of the driver, on Spark Connect of rank 0's task, that tasks connect to; null takes any.",
    )
    driver_log_verbosity: Literal["log_callback_only", "all"] = Field(
        "log_callback_only",
        description="Output of ranks on the driver: a line per validation, or `all` lines of every rank.",
    )

    @model_validator(mode="after")
    def _is_possible(self) -> Resources:
        if self.slots_per_trial == 0 and self.strategy != "horovod_cluster":
            raise ValueError(
                f"slots_per_trial 0 is every slot of a cluster, and strategy is {self.strategy}; give a number, or "
                "choose horovod_cluster"
            )
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


class CheckpointStorage(Section):
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

    @property
    def retention(self) -> Retention:
        """The three rules."""
        return Retention(self.save_experiment_best, self.save_trial_best, self.save_trial_latest)


class Reproducibility(Section):
    """Settings for repeatable trainings."""

    experiment_seed: int = Field(
        0, ge=0, lt=2**31, description="Seed of weights, row order, augmentation and searches."
    )
    deterministic: bool = Field(
        False,
        description="One thread per rank and deterministic operations of the framework, so that a repeated or resumed "
        "training on CPU is bit-for-bit identical. Slower: a rank uses one core.",
    )

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the ranks."""
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        # PyTorch's rule for deterministic matrix products; some versions refuse them without it, 2.11 does not.
        exact = {"TF_DETERMINISTIC_OPS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        return {**threads, **exact} if self.deterministic else {}


class Optimizations(Section):
    """How gradients are computed and combined."""

    mixed_precision: Literal["float16", "bfloat16"] | None = Field(
        None, description="Keras' mixed precision policy, or PyTorch's autocast."
    )
    aggregation_frequency: int = Field(1, ge=1, description="Batches whose gradients are added up before one update.")
    gradient_compression: Literal["none", "fp16"] = Field("none", description="Compression of gradients between ranks.")
    gradient_clip_norm: float | None = Field(
        None,
        gt=0,
        description="Largest norm of all gradients together, of PyTorch; Keras' optimizers have `global_clipnorm`.",
    )
    sync_batch_norm: bool = Field(
        False,
        description="Statistics of batch normalization over all ranks' rows, of PyTorch on GPUs (not run yet); for "
        "Keras build `hvd.SyncBatchNormalization`.",
    )
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="Factor on the learning rate by the number of ranks: 1, n or the square root of n."
    )
    warmup_epochs: float = Field(
        0.0, ge=0, description="Epochs over which the learning rate rises to its scaled value."
    )

    def factor(self, workers: int) -> float:
        """Returns the factor on the learning rate."""
        return {"none": 1.0, "linear": float(workers), "sqrt": math.sqrt(workers)}[self.learning_rate_scaling]

    def described(self, workers: int, length: int) -> list[str]:
        """Describes the enabled optimizations, a line each."""
        lines = []
        if self.mixed_precision is not None:
            lines.append(f"mixed_precision: layers compute in {self.mixed_precision}; weights stay float32")
        every = self.aggregation_frequency
        if every > 1:
            left = f"; the last {length % every} steps fill no group and are not applied" if length % every else ""
            lines.append(f"aggregation_frequency: gradients of {every} steps are averaged before one update{left}")
        if self.gradient_compression != "none":
            travels = f"float16 gradients between {workers} workers" if workers > 1 else "no gradients are sent"
            lines.append(f"gradient_compression: {travels}")
        return lines


class EarlyStopping(Section):
    """When to stop before `max_length`."""

    patience: int = Field(ge=1, description="Validations without improvement after which training stops.")
    min_delta: float = Field(0.0, ge=0, description="Smallest change of the metric that counts as an improvement.")
    restore_best_weights: bool = Field(False, description="Restore the best weights when training ends.")


class Tracking(Section):
    """MLflow store and experiment of the run."""

    uri: str | None = Field(None, description="MLflow store; null takes MLFLOW_TRACKING_URI, or Databricks' own.")
    experiment: str = Field("lakelens", min_length=1, description="MLflow experiment; created if it does not exist.")
    register_as: str | None = Field(None, description="Registers the best model under this name.")

    @field_validator("register_as")
    @classmethod
    def _can_be_registered(cls, value: str | None) -> str | None:
        if value is not None:
            require_model_name(value)
        return value
