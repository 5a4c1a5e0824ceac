"""The thin MLflow layer: which store is used, and one run per job.

The driver creates and ends the run, so that a job that fails is a failed run; `run_writer` is what it writes with.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from ..errors import InvalidArgumentError, RunNotResumableError, TrackingError
from ..extras import require
from ..locations import absolute_path, without_password
from .heartbeat import FAILURE_TAG, HEARTBEAT_TAG, Heartbeat, end_lost_runs
from .names import changed_names
from .run_values import TAG_LIMIT, RunValues, tags_for

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

TABLE_TAG = "lakelens.table"
VERSION_TAG = "lakelens.version"
TABLE_ID_TAG = "lakelens.table_id"
DIGEST_TAG = "lakelens.checkpoint_digest"
ENTRYPOINT_TAG = "lakelens.entrypoint"
METRIC_TAG = "lakelens.metric"
LABELS_TAG = "lakelens.labels"
# Of the run of a search: the searcher's name.
SEARCH_TAG = "lakelens.search"
REQUEST_TAG = "lakelens.request"
ORIGIN_TAG = "lakelens.reproduces"
# Key of a job, and which attempt of it works on the run or has ended it.
JOB_TAG = "lakelens.job"
ATTEMPT_TAG = "lakelens.job.attempt"
# MLflow's own name, by which its UI nests runs.
PARENT_TAG = "mlflow.parentRunId"
EXISTS = ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS")  # codes of MLflow's own stores, and of Unity Catalog
CHECKPOINT_ARTIFACT = "checkpoint"

_LOCAL_STORE = "mlflow.db"
# MLflow's own defaults keep a call to a server that never answers for 20 minutes.
_HTTP_SETTINGS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}


def resolve_tracking_uri(tracking_uri: str | None = None) -> str:
    """Decides which MLflow store is used, as a URI that means the same in every process."""
    # The argument, else the variable (`mlflow.set_tracking_uri` sets it too), else the workspace, else a file here.
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
    if not uri.strip():
        if "DATABRICKS_RUNTIME_VERSION" in os.environ:
            return "databricks"
        return f"sqlite:///{Path(_LOCAL_STORE).absolute()}"
    if uri.startswith("sqlite:///"):
        path = uri.removeprefix("sqlite:///")
        return uri if not path or path == ":memory:" else f"sqlite:///{Path(path).expanduser().absolute()}"
    if uri.startswith("file:") and not uri.startswith("file:/"):
        return Path(absolute_path(uri)).as_uri()
    if "://" not in uri and uri not in ("databricks", "databricks-uc") and not uri.startswith(("file:", "databricks:")):
        return Path(uri).expanduser().absolute().as_uri()
    return uri


def local_store_path(tracking_uri: str) -> Path | None:
    """Returns the file or folder of a store that only this machine has; None for servers and databases."""
    if tracking_uri.startswith("sqlite:///"):
        return Path(tracking_uri.removeprefix("sqlite:///"))
    if tracking_uri.startswith("file:"):
        return Path(unquote(urlparse(tracking_uri).path))
    return None


@dataclass(frozen=True)
class RunReference:
    """One MLflow run, in a form that travels to the ranks."""

    tracking_uri: str  # Its store
    experiment_id: str  # Its experiment
    run_id: str  # Its id
    created_on: str  # Host name of the driver


def open_client(tracking_uri: str) -> MlflowClient:
    """Opens the store, with bounded waits unless the user has set MLflow's; the first call asks a server."""
    require("MLflow's tracking", "mlflow")
    from mlflow import MlflowClient

    for name, value in _HTTP_SETTINGS.items():
        os.environ.setdefault(name, value)
    store = local_store_path(tracking_uri)
    if store is None:
        return MlflowClient(tracking_uri=tracking_uri)
    # A new SQLite store prints 60 lines about the migrations of its tables.
    with as_tracking_errors(tracking_uri, "open the store"), quiet("alembic", "mlflow.store.db.utils"):
        store.parent.mkdir(parents=True, exist_ok=True)
        with _one_creator(store) if tracking_uri.startswith("sqlite:") else nullcontext():
            client = MlflowClient(tracking_uri=tracking_uri)
            client.get_experiment("0")  # opens it now: here a failure has this call's name on it
        return client


@contextmanager
def tracked_run(
    tracking_uri: str,
    experiment_name: str,
    *,
    run_name: str | None = None,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    run_id: str | None = None,
) -> Iterator[RunReference]:
    """Creates a run, or takes the empty one of `run_id`, and ends it: FINISHED, FAILED with the reason, or KILLED."""
    client = open_client(tracking_uri)
    if run_id is None:
        run_id = created_run(client, tracking_uri, experiment_name, run_name, tags or {})
        tags = {}
    with as_tracking_errors(tracking_uri, f"open run {run_id}"):
        experiment_id = str(client.get_run(run_id).info.experiment_id)
    with _ended(client, RunReference(tracking_uri, experiment_id, run_id, socket.gethostname())) as opened:
        with as_tracking_errors(tracking_uri, f"write the parameters of run {run_id}"):
            values = RunValues(client, run_id)
            values.set_tags(tags or {})
            values.log_params(params or {})
        yield opened


def created_run(
    client: MlflowClient, tracking_uri: str, experiment_name: str, run_name: str | None, tags: Mapping[str, str]
) -> str:
    """Creates a run that this process keeps; returns its id."""
    with as_tracking_errors(tracking_uri, f"create a run in experiment {experiment_name!r}"):
        experiment_id = _experiment_id(client, tracking_uri, experiment_name)
        end_lost_runs(client, experiment_id)
        kept_by = {HEARTBEAT_TAG: str(Heartbeat.now())}
        given = tags_for({**_parent_tag(tracking_uri), **tags, **kept_by})
        return str(client.create_run(experiment_id, run_name=run_name, tags=given).info.run_id)


def _parent_tag(tracking_uri: str) -> dict[str, str]:
    """Names the run that the caller has active in the same store, as `mlflow.start_run` does, for MLflow to nest in."""
    mlflow = sys.modules.get("mlflow")
    active = mlflow.active_run() if mlflow is not None else None
    if mlflow is None or active is None or resolve_tracking_uri(mlflow.get_tracking_uri()) != tracking_uri:
        return {}
    return {PARENT_TAG: str(active.info.run_id)}


def check_resumable(tracking_uri: str, run_id: str) -> tuple[str, dict[str, str]]:
    """Checks that a run can continue; gives its experiment and its tags. Raises as `resumed_run`."""
    client = open_client(tracking_uri)
    with as_tracking_errors(tracking_uri, f"open run {run_id} again"):
        experiment_id = str(client.get_run(run_id).info.experiment_id)
        end_lost_runs(client, experiment_id)
        run = client.get_run(run_id)
    if run.info.status in ("FINISHED", "RUNNING"):
        raise RunNotResumableError(
            f"run {run_id} is {run.info.status}; a run that failed or was interrupted can be resumed"
        )
    return experiment_id, dict(run.data.tags)


@contextmanager
def resumed_run(tracking_uri: str, run_id: str) -> Iterator[RunReference]:
    """Opens a run again that has not finished, and ends it as `tracked_run` does."""
    experiment_id, tags = check_resumable(tracking_uri, run_id)
    client = open_client(tracking_uri)
    with as_tracking_errors(tracking_uri, f"open run {run_id} again"):
        open_again(client, run_id, tags)
    with _ended(client, RunReference(tracking_uri, experiment_id, run_id, socket.gethostname())) as opened:
        yield opened


def open_again(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Marks a run that has ended as one that this process keeps."""
    client.set_tag(run_id, HEARTBEAT_TAG, str(Heartbeat.now()))
    # A request to the run before it ended does not apply to what continues.
    for tag in (FAILURE_TAG, REQUEST_TAG):
        if tag in tags:
            client.delete_tag(run_id, tag)
    client.update_run(run_id, status="RUNNING")


@contextmanager
def _ended(client: MlflowClient, run: RunReference) -> Iterator[RunReference]:
    """Ends a run when the body ends, as `tracked_run` promises."""
    tracking_uri, run_id = run.tracking_uri, run.run_id
    try:
        yield run
    except BaseException as error:
        status = "FAILED" if isinstance(error, Exception) else "KILLED"
        _end_failed(tracking_uri, run_id, status, f"{type(error).__name__}: {error}")
        raise
    with as_tracking_errors(tracking_uri, f"end run {run_id}"):
        client.set_terminated(run_id, "FINISHED")


def steps_of(run: RunReference) -> set[int]:
    """Returns the steps that a run has metrics of, those of its best checkpoint (`best_...`) left out."""
    return {int(point.step) for point in measured_points(run.tracking_uri, run.run_id)}


def measured_points(tracking_uri: str, run_id: str) -> list[Metric]:
    """Returns a run's points under the training's names, but for those of its best checkpoint and its machine."""
    from mlflow.entities import Metric

    with as_tracking_errors(tracking_uri, f"read the metrics of run {run_id}"):
        client = open_client(tracking_uri)
        data = client.get_run(run_id).data
        given = {own: name for name, own in changed_names(data.tags).items()}
        return [
            Metric(given.get(own, own), point.value, point.timestamp, point.step)
            for own in data.metrics
            if not given.get(own, own).startswith(("best_", "system/"))
            for point in client.get_metric_history(run_id, own)
        ]


def _experiment_id(client: MlflowClient, tracking_uri: str, name: str) -> str:
    from mlflow.exceptions import MlflowException

    if tracking_uri.startswith("databricks") and not name.startswith("/"):
        raise InvalidArgumentError(
            f"tracking.experiment is {name!r}; on Databricks it is a workspace path, such as "
            f"/Users/you@company.com/{name}"
        )
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location=_artifact_location(tracking_uri)))
        except MlflowException as error:
            if error.error_code not in EXISTS:  # another driver was faster
                raise
            experiment = client.get_experiment_by_name(name)
    if experiment.lifecycle_stage != "active":
        raise TrackingError(
            f"experiment {name!r} in {without_password(tracking_uri)} is deleted; restore it (mlflow experiments "
            f"restore --experiment-id {experiment.experiment_id}) or give another name"
        )
    return str(experiment.experiment_id)


def _artifact_location(tracking_uri: str) -> str | None:
    """Returns the folder next to a local store; MLflow's default is relative to the process that opens the store."""
    store = local_store_path(tracking_uri)
    if store is None or not tracking_uri.startswith("sqlite:"):
        return None
    return (store.parent / "mlartifacts").as_uri()


def _end_failed(tracking_uri: str, run_id: str, status: str, reason: str) -> None:
    try:
        client = open_client(tracking_uri)
        client.set_tag(run_id, FAILURE_TAG, reason[:TAG_LIMIT])
        client.set_terminated(run_id, status)
    except Exception as error:  # noqa: BLE001  the job's own error is on its way to the caller and must not be replaced
        logging.getLogger(__name__).warning("run %s could not be marked %s: %s", run_id, status, error)


@contextmanager
def as_tracking_errors(tracking_uri: str, doing: str) -> Iterator[None]:
    """Turns what MLflow, its database and its network raise into a `TrackingError` that names the store."""
    require("MLflow's tracking", "mlflow")
    from mlflow.exceptions import MlflowException

    known: tuple[type[Exception], ...] = (MlflowException, OSError)
    try:
        yield
    except known + _sql_errors() as error:
        raise TrackingError(without_password(f"{tracking_uri} did not let us {doing}: {error}")) from error


def _sql_errors() -> tuple[type[Exception], ...]:
    """The errors of the SQL store, if this process has one open: MLflow lets some of them through."""
    sqlalchemy = sys.modules.get("sqlalchemy.exc")
    return (sqlalchemy.SQLAlchemyError,) if sqlalchemy else ()


def require_store(tracking_uri: str) -> None:
    """Checks that runs can be recorded; MLflow itself would try for two minutes in a read-only folder."""
    store = local_store_path(tracking_uri)
    if store is None:
        with as_tracking_errors(tracking_uri, "list its experiments"):
            open_client(tracking_uri).search_experiments(max_results=1)
        return
    if store.name == ":memory:":
        return
    folder = next((place for place in (store, *store.parents) if place.is_dir()), Path())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
        if store.is_file():
            store.open("ab").close()
    except OSError as error:
        raise InvalidArgumentError(
            f"MLflow's store would be {store}, and folder {folder} cannot be written ({error.strerror}); give another "
            "tracking_uri (--tracking-uri, tracking.uri), set MLFLOW_TRACKING_URI, or start in another folder"
        ) from error


@contextmanager
def _one_creator(store: Path) -> Iterator[None]:
    """Lets one process at a time open a SQLite store: MLflow makes its tables in many steps and without a lock."""
    with ExitStack() as stack:
        # A folder that cannot be written has its store already; one without locks has none for SQLite either.
        with suppress(OSError):
            file = stack.enter_context(store.with_name(f"{store.name}.lock").open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_artifact(tracking_uri: str, run_id: str, path: str) -> str:
    """Reads a small text that a run has stored."""
    import mlflow.environment_variables as settings

    client = open_client(tracking_uri)
    with as_tracking_errors(tracking_uri, f"read {path} of run {run_id}"), tempfile.TemporaryDirectory() as folder:
        shows_bar = settings.MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR
        given = shows_bar.get_raw()
        shows_bar.set(False)
        try:
            return Path(client.download_artifacts(run_id, path, folder)).read_text(encoding="utf-8")
        finally:
            shows_bar.unset() if given is None else shows_bar.set(given)


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Keeps the notices of these loggers off the user's terminal; warnings stay."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
