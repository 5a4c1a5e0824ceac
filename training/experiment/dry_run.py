"""What an experiment would do: resolved and counted, with nothing written or started."""

from __future__ import annotations

from typing import Any

from ...errors import UnsupportedTableFeatureError
from ...etl.log.snapshot import identify
from ...spark.session import SessionSource
from ..configuration.experiment import ExperimentConfig, require_single
from ..feed.copies import find_copy
from ..feed.plan.epoch_order import lanes_of_rank
from ..trials.entrypoint import EntryPoint
from .config_meaning import Lengths
from .strategies import Strategy
from .trial_data import TrialData, location_of


def plan_of(config: ExperimentConfig, spark: SessionSource | None = None) -> dict[str, Any]:
    """Resolves an experiment: table, version, splits, rows, ranks, steps and memory.

    Args:
        config: The experiment.
        spark: The session that knows the catalog, for a table's name.

    Returns:
        JSON values.

    Raises:
        LakelensError: As the training would before it starts its ranks.
    """
    require_single(config, config.name or "experiment")
    entry = EntryPoint.parse(config.entrypoint)
    data = _data_of(config, spark)
    feed, batch_size = data.training, config.global_batch_size
    steps_per_epoch = feed.steps_per_epoch(batch_size)
    lengths = Lengths.of(config, steps_per_epoch)
    strategy = Strategy.of(config, spark)
    ranks = strategy.np
    lanes = len(lanes_of_rank(feed.plan.order.lanes, 0, abs(ranks)))
    height, width = data.image_size
    read = data.described()
    return {
        "dry_run": True,
        "entrypoint": entry.name,
        "table": feed.location,
        "version": feed.version,
        "rows": dict(read.rows),
        "classes": len(data.task.class_names),
        "image_size": list(data.image_size),
        "strategy": strategy.name,
        "devices_per_rank": strategy.replicas,
        "ranks": abs(ranks),
        "where": "driver" if ranks < 0 else "Spark executors",
        "batch_size": batch_size,
        "steps_per_epoch": steps_per_epoch,
        "steps": lengths.steps,
        "validation_period": lengths.validation_period,
        "warnings": data.warnings(batch_size),
        "metric": f"{config.goal.metric}:{config.goal.mode}",
        "row_group_bytes_per_rank": feed.plan.reading_bytes(lanes),
        "image_batch_bytes_per_rank": -(-batch_size // abs(ranks)) * height * width * 3 * 4,
    }


def _data_of(config: ExperimentConfig, spark: SessionSource | None) -> TrialData:
    """Opens what a trial reads; a copy that it needs (`data.materialize`) is read where there is one, not made."""
    data, seed = config.data, config.reproducibility.experiment_seed
    try:
        return TrialData.open(data.model_copy(update={"materialize": None}), seed, spark=spark)
    except UnsupportedTableFeatureError as error:
        if data.materialize is None:
            raise
        options = dict(data.storage_options)
        identity = identify(location_of(data.table, spark), data.version, options)
        if find_copy(identity, data.materialize, options) is None:
            raise UnsupportedTableFeatureError(
                f"{error} There is no copy in {data.materialize} yet: the training makes one, a dry run does not"
            ) from error
        return TrialData.open(data, seed, spark=spark)
