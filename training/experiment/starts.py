"""The start of a new run: the whole state of a finished run (`continue_from`), or another model's weights."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CheckpointError, ConfigurationError
from ...tracking.datasets import require_same_files
from ...tracking.run_listing import get_run, open_existing_store
from ...tracking.run_writer import RunRecord, RunWriter
from ...tracking.runs import (
    ENTRYPOINT_TAG,
    TABLE_TAG,
    VERSION_TAG,
    as_tracking_errors,
    measured_points,
    resolve_tracking_uri,
)
from ..checkpoints.checkpoint import Checkpoint, copy_checkpoint, last_checkpoint, list_checkpoints
from ..checkpoints.references import ModelRef, resolve_model
from ..checkpoints.warm_start import WarmStart
from ..configuration.experiment import ExperimentConfig
from ..segments.training_state import TrainingState
from ..tasks.registry import task_of
from .config_record import read_recorded
from .run_folder import checkpoint_root

if TYPE_CHECKING:
    from mlflow.entities import Run

    from .experiment_plan import ExperimentPlan

CONTINUED_TAG = "lakelens.continued_from"
WARM_START_TAG = "lakelens.warm_start"
WARM_START_DIGEST_TAG = "lakelens.warm_start_digest"
_WARM_START_FOLDER = "warm-start"
# An empty file: all checkpoints and metrics of the run that is continued are there.
_CONTINUED = "continued"
# Keys that must stay unchanged if a training continues with its whole state.
_KEPT = ("task", "optimizations", "reproducibility", "global_batch_size")
_KEPT_OF_DATA = ("train_split", "validation_split", "filters", "columns", "image_size", "class_names")


@dataclass(frozen=True)
class TrainingStart:
    """What a new run starts with; without both the model starts from scratch."""

    finished: FinishedRun | None = None  # A run to continue
    model: ModelRef | None = None  # A model whose weights to take

    @classmethod
    def of(cls, plan: ExperimentPlan, resumes: str | None = None) -> TrainingStart:
        """Finds what a config's `continue_from` or `warm_start` names."""
        config = plan.config
        if resumes is not None:
            folder = plan.root / resumes
            is_laid = config.continue_from is None or (folder / _CONTINUED).exists()
            if is_laid and last_checkpoint(folder) is not None:
                return cls()
        if config.continue_from is not None:
            return cls(finished=FinishedRun.of(plan))
        if config.warm_start is not None:
            model = resolve_model(config.warm_start, resolve_tracking_uri(config.tracking.uri))
            task = task_of(model.checkpoint).name
            if task != config.task:
                raise ConfigurationError(
                    f"warm_start: {model.uri} is a model for task {task}, and this experiment's task is {config.task}; "
                    f"name a model for {config.task}, or give a backbone's weights to the Trial"
                )
            return cls(model=model)
        return cls()

    @property
    def tags(self) -> dict[str, str]:
        """Tags and parameters that record the start of the run."""
        if self.finished is not None:
            return {CONTINUED_TAG: self.finished.run_id}
        if self.model is not None:
            return {WARM_START_TAG: self.model.uri, WARM_START_DIGEST_TAG: self.model.digest}
        return {}

    def pinned(self, config: ExperimentConfig) -> ExperimentConfig:
        """Returns a config whose `warm_start` always resolves to the same model; an alias, for example, may move."""
        if self.model is None or self.model.uri.startswith("runs:"):
            return config
        if self.model.tracking_uri is None:
            return config.model_copy(update={"warm_start": str(self.model.path)})
        if self.model.run_id is None:
            return config
        return config.model_copy(update={"warm_start": f"runs:/{self.model.run_id}"})

    @contextlib.contextmanager
    def laid_into(self, folder: Path, writer: RunWriter) -> Iterator[WarmStart | None]:
        """Copies it into the run's folder for rank 0; the weights to take stay there until the block ends."""
        if self.finished is not None:
            self.finished.move_into(folder, writer)
        copies = folder / _WARM_START_FOLDER
        try:
            model = self.model
            yield WarmStart(model.uri, copy_checkpoint(model.checkpoint, copies).path) if model is not None else None
        finally:
            shutil.rmtree(copies, ignore_errors=True)


@dataclass(frozen=True)
class FinishedRun:
    """A finished run to continue."""

    run_id: str  # Its id
    tracking_uri: str  # Its store
    checkpoints: list[Checkpoint]  # Its kept checkpoints, the last one at the end

    @classmethod
    def of(cls, plan: ExperimentPlan) -> FinishedRun:
        """Finds the run of a config's `continue_from`; raises as `TrainingStart.of`."""
        config, read = plan.config, plan.data.described()
        run_id = str(config.continue_from)
        uri, client = open_existing_store(config.tracking.uri)
        reads = {ENTRYPOINT_TAG: plan.entrypoint.name, TABLE_TAG: read.location, VERSION_TAG: str(read.version)}
        with as_tracking_errors(uri, f"read run {run_id}"):
            run = get_run(client, run_id)
        run_id = str(run.info.run_id)
        if run.info.status != "FINISHED":
            raise ConfigurationError(
                f"continue_from: run {run_id} is {run.info.status}; only a finished run can be continued; "
                f"`lakelens train --resume {run_id}` resumes one that failed or was interrupted"
            )
        recorded = read_recorded(uri, run_id)
        for key, old, new in _kept_keys(run, ExperimentConfig.read(recorded), config, reads):
            if old != new:
                raise ConfigurationError(
                    f"continue_from: {key} is {new} and was {old} in run {run_id}, whose training continues with its "
                    f"whole state; leave the key unchanged, or take its weights alone as warm_start: runs:/{run_id}"
                )
        require_same_files(uri, run_id, read)
        folder = checkpoint_root(recorded["checkpoint_storage"]["path"]) / run_id
        checkpoints = list_checkpoints(folder)
        if not checkpoints:
            raise CheckpointError(
                f"continue_from: {folder} holds no checkpoint of run {run_id}, which wrote them there; put them back, "
                f"or take its best weights as warm_start: runs:/{run_id}"
            )
        state = TrainingState.of(checkpoints[-1])
        if state.stopped:
            raise ConfigurationError(
                f"continue_from: run {run_id} was stopped after {state.step} steps, by early_stopping or a callback, "
                f"as a longer training would have been; take its weights as warm_start: runs:/{run_id}"
            )
        steps = plan.schedule.length
        if steps <= state.step:
            raise ConfigurationError(
                f"continue_from: searcher.max_length ({config.searcher.max_length}) is {steps} steps and "
                f"run {run_id} has trained {state.step}; give a larger one"
            )
        return cls(run_id, uri, checkpoints)

    def move_into(self, folder: Path, writer: RunWriter) -> None:
        """Copies its checkpoints to a new run's folder, and its metrics into the new run."""
        for checkpoint in self.checkpoints:
            copy_checkpoint(checkpoint, folder)
        for point in measured_points(self.tracking_uri, self.run_id):
            writer.log(RunRecord({point.key: point.value}, point.step, time_ms=point.timestamp))
        (folder / _CONTINUED).touch()


def _kept_keys(run: Run, old: ExperimentConfig, new: ExperimentConfig, reads: Mapping[str, str]) -> Iterator[Any]:
    """Yields key, old value and new value of keys that a continued training must keep."""
    keys = {ENTRYPOINT_TAG: "entrypoint", TABLE_TAG: "data.table", VERSION_TAG: "data.version"}
    for tag, key in keys.items():
        yield key, run.data.tags.get(tag), reads[tag]
    for key in _KEPT_OF_DATA:
        yield f"data.{key}", getattr(old.data, key), getattr(new.data, key)
    for key in _KEPT:
        yield key, getattr(old, key), getattr(new, key)
    yield "hyperparameters", old.trial_hyperparameters, new.trial_hyperparameters
    # Later values are compared with the best value so far.
    yield "searcher.metric", *(f"{one.goal.metric} ({one.goal.mode})" for one in (old, new))
