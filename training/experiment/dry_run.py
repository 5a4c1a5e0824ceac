"""Resolves an experiment and counts rows and steps, without writing or starting anything."""

from __future__ import annotations

from typing import Any

from ...spark.session import SessionSource
from ..configuration.experiment import ExperimentConfig, require_single
from ..feed.plan.epoch_order import lanes_of_rank
from ..trials.entrypoint import EntryPoint
from .config_meaning import Lengths
from .strategies import Strategy
from .trial_data import TrialData


def plan_of(config: ExperimentConfig, spark: SessionSource | None = None) -> dict[str, Any]:
    """Resolves an experiment: table, version, splits, rows, ranks, steps and memory.

    Args:
        config: The experiment.
        spark: The session, for a catalog name.

    Returns:
        JSON values.

    Raises:
        LakelensError: As the training would before it starts its ranks.
    """
    require_single(config, config.name or "experiment")
    entry = EntryPoint.parse(config.entrypoint)
    data = TrialData.open(config.data, config.reproducibility.experiment_seed, spark=spark)
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
