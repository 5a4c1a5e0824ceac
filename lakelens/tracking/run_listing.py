"""Lists the runs of a store with table version, entry point, best metric and state, and reads one of them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, LakelensError, ModelNotFoundError, TrainingPaused
from ..extras import require
from ..locations import without_password
from .datasets import Scoring, scorings_of
from .heartbeat import FAILURE_TAG, end_lost_runs
from .names import metric_of, quoted
from .runs import (
    ATTEMPT_TAG,
    DIGEST_TAG,
    ENTRYPOINT_TAG,
    JOB_TAG,
    METRIC_TAG,
    TABLE_TAG,
    VERSION_TAG,
    as_tracking_errors,
    local_store_path,
    open_client,
    resolve_tracking_uri,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

_EXPERIMENTS_AT_ONCE = 1000


@dataclass(frozen=True)
class RunSummary:
    """One run of lakelens.

    Attributes:
        run_id: Its id.
        name: As MLflow shows it.
        experiment: Name of its experiment.
        state: `RUNNING`, `FINISHED`, `FAILED`, `KILLED`, or `PAUSED`, which MLflow knows as `KILLED`.
        table: Location of the table that it reads.
        version: The version.
        entrypoint: Its Trial.
        metric: What chose its checkpoint, such as `val_loss`.
        value: The best value of it; None before there is one.
        started: When, in UTC and ISO 8601.
        seconds: How long it took, or has taken so far.
        digest: Digest of its checkpoint; None without one.
        failure: Why it failed; None when it did not.
        job: Key of its job; None if it has none.
        attempt: Which attempt of the job this is, from 1; None without a job.
    """

    run_id: str
    name: str
    experiment: str
    state: str
    table: str | None
    version: int | None
    entrypoint: str | None
    metric: str | None
    value: float | None
    started: str
    seconds: float
    digest: str | None
    failure: str | None
    job: str | None = None
    attempt: int | None = None


@dataclass(frozen=True)
class RunDetails:
    """Everything that one run records.

    Attributes:
        summary: As in a list.
        params: Its parameters: settings and hyperparameters.
        metrics: The last value of each metric.
        rows: Rows that were read, by split.
        tags: Its tags, without those of its scorings.
        artifacts: The location of its artifacts.
        scored: What was scored with its model.
    """

    summary: RunSummary
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    rows: Mapping[str, int]
    tags: Mapping[str, str]
    artifacts: str
    scored: Sequence[Scoring]


def open_existing_store(tracking_uri: str | None) -> tuple[str, MlflowClient]:
    """Opens an existing store for reading."""
    require("MLflow's tracking", "mlflow")
    uri = resolve_tracking_uri(tracking_uri)
    path = local_store_path(uri)
    if path is not None and not path.exists():
        raise InvalidArgumentError(
            f"there is no MLflow store at {path}; give tracking_uri (--tracking-uri), or set MLFLOW_TRACKING_URI"
        )
    return uri, open_client(uri)


def runs(tracking_uri: str | None = None, experiment: str | None = None, limit: int = 100) -> list[RunSummary]:
    """Lists the runs of lakelens, the latest first, and marks those as FAILED whose driver is gone.

    Args:
        tracking_uri: As for `train`.
        experiment: Name of one experiment; None lists all of them.
        limit: Most runs.

    Raises:
        InvalidArgumentError: If the store or the experiment does not exist.
        TrackingError: If the store does not answer.

    Examples:
        >>> [one.state for one in lakelens.runs(limit=1)]
        ['FINISHED']
    """
    if limit < 1:
        raise InvalidArgumentError(f"limit is {limit}; it must be at least 1")
    uri, client = open_existing_store(tracking_uri)
    with as_tracking_errors(uri, "list runs"):
        names = experiment_names(client)
        if experiment is not None:
            known = ", ".join(sorted(names.values()))
            names = {number: name for number, name in names.items() if name == experiment}
            if not names:
                raise InvalidArgumentError(f"the store has no experiment {experiment!r}; it has {known}")
        for number in names:
            end_lost_runs(client, number)
        found = client.search_runs(
            list(names), f"tags.`{TABLE_TAG}` != ''", max_results=limit, order_by=["attributes.start_time DESC"]
        )
        return [summary_of(run, names.get(run.info.experiment_id, "")) for run in found]


def show_run(run_id: str, tracking_uri: str | None = None) -> RunDetails:
    """Reads one run, by its id or the key of its job, and marks it as FAILED if its driver is gone.

    Raises:
        ModelNotFoundError: If the run does not exist.
        InvalidArgumentError: If the store does not exist.
        TrackingError: If the store does not answer.

    Examples:
        >>> details = lakelens.show_run(run.run_id)
        >>> details.summary.version, details.params["global_batch_size"]
        (0, '16')
    """
    uri, client = open_existing_store(tracking_uri)
    with as_tracking_errors(uri, f"read run {run_id}"):
        try:
            run = get_run(client, run_id)
        except ModelNotFoundError:
            of_job = runs_of_job(client, run_id)
            if not of_job:
                raise
            run = of_job[0]
        if run.info.status == "RUNNING":
            end_lost_runs(client, run.info.experiment_id)
            run = client.get_run(run.info.run_id)
        return details_of(run, client.get_experiment(run.info.experiment_id).name)


def get_run(client: MlflowClient, run_id: str) -> Run:
    """Reads a run."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id.removeprefix("runs:/"))
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise ModelNotFoundError(
            f"the tracking store has no run {run_id!r}; `lakelens runs` lists those that it has. Check the id, "
            "and tracking_uri (--tracking-uri) or MLFLOW_TRACKING_URI"
        ) from error


def runs_of_job(client: MlflowClient, key: str, view: int | None = None) -> list[Run]:
    """Finds the runs with the key of a job, the first one first; the view of MLflow leaves deleted ones out."""
    found = client.search_runs(
        list(experiment_names(client)),
        f"tags.`{JOB_TAG}` = {quoted(key)}",
        **({} if view is None else {"run_view_type": view}),
    )
    # Databases may compare without case.
    same = [run for run in found if run.data.tags.get(JOB_TAG) == key]
    return sorted(same, key=lambda run: (run.info.start_time, run.info.run_id))


def deleted_runs(tracking_uri: str, run_ids: Collection[str]) -> set[str]:
    """Returns those of some runs that MLflow has deleted; none, with a warning, if its store does not answer."""
    # A run that the store does not know is not one of them: the URI may name another store here.
    own = resolve_tracking_uri()
    deleted: set[str] = set()
    try:
        uri, client = open_existing_store(own if without_password(own) == tracking_uri else tracking_uri)
        with as_tracking_errors(uri, "look up runs"):
            for run_id in run_ids:
                try:
                    if get_run(client, run_id).info.lifecycle_stage == "deleted":
                        deleted.add(run_id)
                except ModelNotFoundError:
                    continue
    except LakelensError as error:
        logger.warning("MLflow does not show which runs it has deleted, so each protects its version: %s", error)
    return deleted


def all_pages(search: Callable[..., Any], **options: Any) -> list[Any]:
    """Reads all pages of an MLflow search."""
    found: list[Any] = []
    token = None
    while True:
        page = search(**options, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def run_of_digest(client: MlflowClient, digest: str) -> Run | None:
    """Finds the run whose checkpoint has a digest; None when the store has none."""
    runs = client.search_runs(list(experiment_names(client)), f"tags.`{DIGEST_TAG}` = {quoted(digest)}", max_results=1)
    return runs[0] if runs else None


def experiment_names(client: MlflowClient) -> dict[str, str]:
    """Names the experiments by id."""
    found = all_pages(client.search_experiments, max_results=_EXPERIMENTS_AT_ONCE)
    return {one.experiment_id: one.name for one in found}


def summary_of(run: Run, experiment: str) -> RunSummary:
    """Reads what a list shows of a run."""
    info, tags = run.info, run.data.tags
    metric = tags.get(METRIC_TAG, "").rpartition(":")[0] or None
    ended = info.end_time or time.time() * 1000
    version = tags.get(VERSION_TAG, "")
    failure = tags.get(FAILURE_TAG)
    paused = info.status == "KILLED" and (failure or "").startswith(f"{TrainingPaused.__name__}:")
    return RunSummary(
        run_id=info.run_id,
        name=info.run_name or "",
        experiment=experiment,
        state="PAUSED" if paused else info.status,
        table=tags.get(TABLE_TAG),
        version=int(version) if version.isdecimal() else None,
        entrypoint=tags.get(ENTRYPOINT_TAG),
        metric=metric,
        value=metric_of(run, f"best_{metric}"),
        started=datetime.fromtimestamp(info.start_time / 1000, timezone.utc).isoformat(timespec="seconds"),
        seconds=round(max(0.0, (ended - info.start_time) / 1000), 1),
        digest=tags.get(DIGEST_TAG),
        failure=failure,
        job=tags.get(JOB_TAG),
        attempt=int(tags[ATTEMPT_TAG]) if JOB_TAG in tags else None,
    )


def details_of(run: Run, experiment: str) -> RunDetails:
    """Reads everything that a run records."""
    rows: dict[str, int] = {}
    for entry in run.inputs.dataset_inputs if run.inputs else ():
        profile = json.loads(entry.dataset.profile or "{}")
        rows |= profile.get("rows", {}) if isinstance(profile, dict) else {}
    scored = scorings_of(run.data.tags)
    hidden = {entry.tag for entry in scored}
    return RunDetails(
        summary=summary_of(run, experiment),
        params=dict(sorted(run.data.params.items())),
        metrics=dict(sorted(run.data.metrics.items())),
        rows=rows,
        tags={name: text for name, text in sorted(run.data.tags.items()) if name not in hidden},
        artifacts=run.info.artifact_uri,
        scored=scored,
    )
