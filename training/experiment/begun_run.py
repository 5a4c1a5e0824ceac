"""Starts the MLflow run of a trial or a search, and records Trial, rows and code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ...tracking.datasets import log_table
from ...tracking.run_values import TAG_LIMIT
from ...tracking.runs import (
    ENTRYPOINT_TAG,
    LABELS_TAG,
    METRIC_TAG,
    TABLE_TAG,
    VERSION_TAG,
    RunReference,
    resolve_tracking_uri,
    tracked_run,
)
from ..configuration.experiment import ExperimentConfig
from ..record.code_record import record_code
from ..trials.entrypoint import EntryPoint
from .config_record import log_config
from .experiment_plan import ExperimentPlan

# The tag that MLflow's UI shows as description.
DESCRIPTION_TAG = "mlflow.note.content"


@contextlib.contextmanager
def begun_run(
    plan: ExperimentPlan, *, tags: Mapping[str, str], params: Mapping[str, Any], run_id: str | None = None
) -> Iterator[RunReference]:
    """Opens an MLflow run, or the empty one of an id, and records before the training what it trains on which rows."""
    config, read = plan.config, plan.data.described()
    uri = resolve_tracking_uri(config.tracking.uri)
    words = {DESCRIPTION_TAG: config.description, LABELS_TAG: ", ".join(config.labels)}
    known = {
        **goal_tags(config, plan.entrypoint),
        TABLE_TAG: read.location,
        VERSION_TAG: str(read.version),
        **{name: text[:TAG_LIMIT] for name, text in words.items() if text},
        **tags,
    }
    with tracked_run(
        uri, config.tracking.experiment, run_name=config.name, tags=known, params=dict(params), run_id=run_id
    ) as run:
        log_table(run, read)
        record_code(run, plan.entrypoint)
        log_config(run, config)
        yield run


def goal_tags(config: ExperimentConfig, entrypoint: EntryPoint) -> dict[str, str]:
    """Returns the tags by which runs are compared: what was trained, and the metric that decides."""
    return {ENTRYPOINT_TAG: entrypoint.name, METRIC_TAG: f"{config.goal.metric}:{config.goal.mode}"}
