"""Resolves an experiment, counts rows and steps and checks the Trial, without writing or training anything."""

from __future__ import annotations

import sys
from dataclasses import replace
from socket import gethostname
from typing import Any

from ...extras import require
from ...spark.session import SessionSource
from ...tracking.runs import RunReference, require_store, resolve_tracking_uri
from ..checkpoints.warm_start import WarmStart
from ..configuration.experiment import ExperimentConfig, require_single
from ..feed.plan.epoch_order import lanes_of_rank
from ..runner.placement.job import EXPERIMENT_TERMS
from ..runner.spark.preflight import check_horovod
from ..segments.backend import FRAMEWORKS
from ..segments.outcome import SegmentOutcome
from ..segments.segment import check_trial
from .experiment_plan import ExperimentPlan
from .run_folder import require_writable
from .starts import TrainingStart
from .strategies import Strategy


def plan_of(config: ExperimentConfig, spark: SessionSource | None = None, *, imports: bool = False) -> dict[str, Any]:
    """Resolves an experiment: table, version, splits, rows, ranks, steps and memory."""
    require_single(config)
    plan = ExperimentPlan.of(config, spark=spark)
    if imports:
        _check_trial(plan)
    feed, schedule, ranks = plan.data.training, plan.schedule, abs(plan.ranks)
    share = max(1, ranks)  # every slot of the cluster, if 0: then the memory of one rank is an upper bound
    height, width = plan.data.image_size
    return {
        "dry_run": True,
        "imported": imports,
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


def _check_trial(plan: ExperimentPlan) -> None:
    """Checks store, folder, start and Trial, the Trial in a separate process: no user code runs in this one."""
    require("a training", "mlflow", *FRAMEWORKS[plan.entrypoint.framework].packages)
    require_store(resolve_tracking_uri(plan.config.tracking.uri))
    require_writable(plan.root)
    if plan.ranks < -1 and FRAMEWORKS[plan.entrypoint.framework].needs_horovod:
        check_horovod(EXPERIMENT_TERMS)
    model = TrainingStart.of(plan).model
    # Without GPUs: others may use them, and the process that trains may be on another machine.
    alone = Strategy("single", -1, 1, use_gpu=False, framework=plan.entrypoint.framework)
    config = plan.config
    # A cache would be written.
    config = config.model_copy(update={"data": config.data.model_copy(update={"cache": False})})
    weights = None if model is None else WarmStart(model.uri, model.path)
    job = replace(plan, config=config, strategy=alone).job(RunReference("", "", "dry-run", gethostname()), weights)
    runner = alone.runner(config.resources.model_copy(update={"driver_port": None}), "check", None)
    kwargs = {"job": job, "ranks": max(1, abs(plan.ranks))}
    outcome: SegmentOutcome = runner.run_with(check_trial, kwargs, on_message=_say)
    outcome.raise_failure()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
