"""Resolves an experiment and counts rows and steps, without writing or starting anything."""

from __future__ import annotations

from typing import Any

from ...spark.session import SessionSource
from ..configuration.experiment import ExperimentConfig, require_single
from ..feed.plan.epoch_order import lanes_of_rank
from .experiment_plan import ExperimentPlan


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
    require_single(config)
    plan = ExperimentPlan.of(config, spark=spark)
    feed, schedule, ranks = plan.data.training, plan.schedule, abs(plan.ranks)
    share = max(1, ranks)  # every slot of the cluster, if 0: then the memory of one rank is an upper bound
    height, width = plan.data.image_size
    return {
        "dry_run": True,
        "entrypoint": plan.entrypoint.name,
        "table": feed.location,
        "version": feed.version,
        "rows": dict(plan.data.described().rows),
        "classes": len(plan.data.class_names),
        "image_size": [height, width],
        "strategy": plan.strategy.name,
        "devices_per_rank": plan.strategy.replicas,
        "ranks": ranks,
        "where": "driver" if plan.ranks < 0 else "Spark executors",
        "global_batch_size": config.global_batch_size,
        "steps_per_epoch": schedule.steps_per_epoch,
        "steps": schedule.length,
        "validation_period": schedule.validation_period,
        "warnings": plan.warnings,
        "metric": f"{config.goal.metric}:{config.goal.mode}",
        "row_group_bytes_per_rank": feed.plan.reading_bytes(len(lanes_of_rank(feed.plan.order.lanes, 0, share))),
        "image_batch_bytes_per_rank": -(-config.global_batch_size // share) * height * width * 3 * 4,
    }
