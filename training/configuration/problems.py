"""Turns pydantic's findings about an experiment file into one error with the path, line, value and rule of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ...errors import ConfigurationError
from .rules import rule_of, shown
from .space import HyperparameterError
from .yaml_file import Document, KeyPath

# What has no key of its name at the top, as other tools have it.
_MOVED = {
    "epochs": "searcher: {max_length: {epochs: 10}}",
    "num_epochs": "searcher: {max_length: {epochs: 10}}",
    "max_epochs": "searcher: {max_length: {epochs: 10}}",
    "batch_size": "hyperparameters: {global_batch_size: 64}",
    "lr": "hyperparameters: {learning_rate: 0.001}",
    "learning_rate": "hyperparameters: {learning_rate: 0.001}",
    "seed": "reproducibility: {experiment_seed: 0}",
    "metric": "searcher: {metric: val_loss}",
}
_TABLE_AS_WRITTEN = "data: {table: tables/photos}"
_EXAMPLES: dict[KeyPath, str] = {("data",): _TABLE_AS_WRITTEN, ("data", "table"): _TABLE_AS_WRITTEN}


def configuration_error(model: type[BaseModel], document: Document, error: ValidationError) -> ConfigurationError:
    """Makes the error that a user sees: a line for each problem, in the order of the file."""
    lines: dict[str, None] = {}
    for found in error.errors():
        lines.setdefault(_line(model, document, dict(found)))
    problems = list(lines)
    head = f"{document.name}: " if len(problems) == 1 else f"{document.name}: {len(problems)} problems\n  "
    return ConfigurationError(head + "\n  ".join(problems))


def _line(model: type[BaseModel], document: Document, found: dict[str, Any]) -> str:
    # Without the names of union members, which pydantic also puts into a location.
    members = ("int", "str", "list[int]")
    path: KeyPath = tuple(part for part in found["loc"] if not (part in members and part == found["loc"][-1]))
    cause = found.get("ctx", {}).get("error")
    value = found["input"]
    if isinstance(cause, HyperparameterError):
        path, value = (*path, *cause.path), cause.value
    known = _fields_at(model, path[:-1])
    rule = rule_of(found, known)
    if found["type"] == "extra_forbidden":
        rule = instead_of(path) or _elsewhere(model, path) or rule
    if path in _EXAMPLES:
        rule = f"{rule}, as in {_EXAMPLES[path]}"
    dotted = ".".join(str(part) for part in path)
    if not dotted:  # keys that contradict each other: the rule begins with one of them
        place = document.place_of(tuple(rule.split()[0].split(".")))
        return f"{place}, {rule}" if place else rule
    place = document.place_of(path)
    subject = f"{place}, {dotted}" if place else dotted
    return f"{subject}: {rule}" if isinstance(value, dict) else f"{subject} is {shown(value)}: {rule}"


def _elsewhere(model: type[BaseModel], path: KeyPath) -> str | None:
    """Says in which section a key at the top belongs; None for others."""
    name = str(path[-1])
    if len(path) > 1:
        return None
    if name in _MOVED:
        return f"there is no such key at the top; write {_MOVED[name]}"
    sections = [section for section in model.model_fields if name in _fields_at(model, (section,))]
    return f"there is no such key at the top; it belongs into {sections[0]}" if len(sections) == 1 else None


def _fields_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    current: type[BaseModel] | None = model
    for part in path:
        field = current.model_fields.get(str(part)) if current is not None else None
        if field is None:
            return []
        options = [field.annotation, *get_args(field.annotation)]
        current = next(
            (option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None
        )
    return list(current.model_fields) if current is not None else []


_PATH = "checkpoints go to the folder checkpoint_storage.path"
_LENGTH = "use searcher.max_length, as in {batches: 1000} (a step was batches_per_step batches, 100 by default)"
_TABLE = "rows come from data.table, a Delta table that `lakelens etl` writes; other values go to hyperparameters"
_SPARK = "Spark's own settings decide that (spark-submit --conf)"
INSTEAD: Mapping[str, str] = {
    "batches_per_step": _LENGTH,
    "bind_mounts": "lakelens starts no containers; mount folders on the machines",
    "debug": "set the level of Python's logging in your Trial",
    "environment": "lakelens starts no containers; environment variables go to resources.env",
    "integrations": "tracking goes to MLflow: see tracking",
    "internal": "it was for Determined itself; remove it",
    "log_policies": "a failed rank's log is in the error; restarts are max_restarts",
    "pbs": _SPARK,
    "preemption_timeout": "a pause takes seconds: `lakelens runs pause RUN`",
    "profiling": "MLflow's system metrics are recorded with each run",
    "project": "use tracking.experiment",
    "records_per_epoch": "the table's version knows its number of rows",
    "retention_policy": "MLflow keeps the logs; checkpoints are kept by checkpoint_storage.save_*",
    "scheduling_unit": "a request to pause is agreed on every few steps",
    "security": "nothing listens beyond the interface that it needs: see docs/security.md",
    "slurm": _SPARK,
    "tensorboard_storage": "TensorBoard logs are artifacts of the MLflow run",
    "workspace": "use tracking.experiment",
    **{f"data.{key}": _TABLE for key in ("url", "data_url", "path", "data_dir", "download_dir", "bucket", "prefix")},
    "data_layer": "use data.cache",
    "min_checkpoint_period_s": "use min_checkpoint_period",
    "checkpoint_storage.type": _PATH,
    "checkpoint_storage.host_path": _PATH,
    "checkpoint_storage.storage_path": _PATH,
    "checkpoint_storage.container_path": _PATH,
    "checkpoint_storage.propagation": _PATH,
    "checkpoint_storage.bucket": "checkpoints go to a mounted folder; the run's artifacts may be in a bucket",
    "checkpoint_storage.prefix": _PATH,
    "checkpoint_storage.access_key": "give credentials in the environment, not in a file",
    "checkpoint_storage.secret_key": "give credentials in the environment, not in a file",
    "checkpoint_storage.endpoint_url": _PATH,
    "checkpoint_storage.container": _PATH,
    "checkpoint_storage.connection_string": "give credentials in the environment, not in a file",
    "checkpoint_storage.account_url": _PATH,
    "checkpoint_storage.credential": "give credentials in the environment, not in a file",
    "optimizations.average_aggregated_gradients": "aggregated gradients are always averaged",
    "optimizations.average_training_metrics": "metrics are always computed over all ranks",
    "optimizations.auto_tune_tensor_fusion": "gradients are grouped automatically",
    "optimizations.tensor_fusion_threshold": "set HOROVOD_FUSION_THRESHOLD in resources.env",
    "optimizations.tensor_fusion_cycle_time": "set HOROVOD_CYCLE_TIME in resources.env",
    "optimizations.grad_updates_size_file": "gradients are grouped automatically",
    "resources.resource_pool": "a Spark session is on one cluster; choose it with --master",
    "resources.agent_label": _SPARK,
    "resources.devices": _SPARK,
    "resources.is_single_node": "use resources.strategy: mirrored or horovod_local",
    "resources.native_parallel": "use resources.strategy",
    "resources.shm_size": "lakelens starts no containers; remove it",
    "resources.weight": "searches share slots fairly; use resources.priority",
    "searcher.max_steps": _LENGTH,
    "searcher.target_trial_steps": _LENGTH,
    "searcher.step_budget": "use searcher.max_trials, and searcher.max_length, as in {batches: 1000}, for each of them",
    "searcher.train_stragglers": "a trial that ends early frees its slot; remove it",
    "searcher.num_rungs": "use searcher.max_rungs",
    "searcher.budget": "use searcher.max_trials, and searcher.max_length, as in {batches: 1000}, for each of them",
    "searcher.max_time": "use searcher.max_length, as in {epochs: 9}",
    "searcher.time_metric": "lakelens counts lengths: use searcher.max_length",
    "searcher.source_trial_id": "use warm_start (weights only) or continue_from (the whole state)",
    "searcher.source_checkpoint_uuid": "use warm_start (weights only) or continue_from (the whole state)",
}


def instead_of(path: tuple[str | int, ...]) -> str | None:
    """Returns the sentence on what to use instead of a key of Determined; None for any other key."""
    dotted = ".".join(str(part) for part in path)
    said = INSTEAD.get(dotted) or INSTEAD.get(f"resources.{dotted}")
    return f"this is a key of Determined that has no meaning here: {said}" if said else None
