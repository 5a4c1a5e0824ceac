"""Keys of Determined's experiment files that have no meaning here, each with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

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
