"""The thin MLflow layer: which store is used, one run per job, the table version as its dataset.

The driver creates and ends the run, so that a job that fails is a failed run; `run_writer` is what it writes with.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from ..errors import InvalidArgumentError, MissingDependencyError, TrackingError
from ..extras import require
from ..locations import absolute_path
from ..locations import without_password as without_password
from .heartbeat import FAILURE_TAG, HEARTBEAT_TAG, Heartbeat, end_lost_runs
from .store_client import answering, one_creator

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

TABLE_TAG = "lakelens.table"
VERSION_TAG = "lakelens.version"
DIGEST_TAG = "lakelens.checkpoint_digest"
ENTRYPOINT_TAG = "lakelens.entrypoint"
METRIC_TAG = "lakelens.metric"
LABELS_TAG = "lakelens.labels"
# Of the run of a search: the searcher's name.
SEARCH_TAG = "lakelens.search"
REQUEST_TAG = "lakelens.request"
ORIGIN_TAG = "lakelens.reproduces"
# MLflow's own name, by which its UI nests runs.
PARENT_TAG = "mlflow.parentRunId"
EXISTS = ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS")  # codes of MLflow's own stores, and of Unity Catalog
CHECKPOINT_ARTIFACT = "checkpoint"

_LOCAL_STORE = "mlflow.db"
_CONNECT_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 30.0
# To end a run that has failed, perhaps because of the store itself.
_END_TIMEOUT_S = 10.0
# MLflow's limit for a tag's value is 8,000 characters, of some backends 5,000.
TAG_LIMIT = 5000
_PARAM_LIMIT = 6000


def resolve_tracking_uri(tracking_uri: str | None = None) -> str:
    """Decides which MLflow store is used, as a URI that means the same in every process.

    The argument, else MLFLOW_TRACKING_URI (which `mlflow.set_tracking_uri` sets too), else the workspace on Databricks,
    else `mlflow.db` (SQLite) in the working folder. Relative paths become absolute.
    """
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
    """One MLflow run, in a form that travels to the ranks.

    Attributes:
        tracking_uri: Its store.
        experiment_id: Its experiment.
        run_id: Its id.
        created_on: Host name of the driver.
    """

    tracking_uri: str
    experiment_id: str
    run_id: str
    created_on: str


@dataclass(frozen=True)
class TableVersion:
    """What a run says of the table version that it reads.

    Attributes:
        location: Path or URI of the table.
        version: The version that is read.
        digest: Identifies the version's active files; 36 characters at most.
        rows: Rows per purpose, as in {"train": 800, "validation": 100}.
    """

    location: str
    version: int
    digest: str
    rows: Mapping[str, int]

    @property
    def name(self) -> str:
        """The table's own name, such as `images@1`."""
        return f"{self.location.rstrip('/').rpartition('/')[2] or self.location}@{self.version}"


def open_client(
    tracking_uri: str, answer_timeout_s: float | None = None, *, large_artifacts: bool = False
) -> MlflowClient:
    """Opens the store.

    Args:
        tracking_uri: As `resolve_tracking_uri` gives it.
        answer_timeout_s: Seconds after which a call to a store that is not on this machine's disk raises a
            `TrackingError`; 30 by default.
        large_artifacts: Whether uploads and downloads may be of checkpoints, and so take 300 seconds.

    Raises:
        InvalidArgumentError: If the URI's port is not a number.
        MissingDependencyError: If MLflow is not installed.
        TrackingError: If the store cannot be reached.
    """
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise MissingDependencyError(f"mlflow is missing ({error}); pip install 'lakelens[training]'") from error
    require_reachable(tracking_uri)
    store = local_store_path(tracking_uri)
    if store is None:
        name, timeout_s = without_password(tracking_uri), answer_timeout_s or _ANSWER_TIMEOUT_S
        return answering(MlflowClient(tracking_uri=tracking_uri), name, timeout_s, large_artifacts=large_artifacts)
    with as_tracking_errors(tracking_uri, "open the store"), _quiet_migrations():
        store.parent.mkdir(parents=True, exist_ok=True)
        with one_creator(store) if tracking_uri.startswith("sqlite:") else nullcontext():
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
) -> Iterator[RunReference]:
    """Creates a run, and ends it: FINISHED, or FAILED with the reason when the body raises, or KILLED when interrupted.

    Args:
        tracking_uri: As `resolve_tracking_uri` gives it.
        experiment_name: Made when it is not there.
        run_name: As the UI shows it; MLflow invents one when None.
        tags: Tags to begin with.
        params: Parameters to begin with.

    Raises:
        TrackingError: If the store cannot be reached or refuses.
    """
    client = open_client(tracking_uri)
    with as_tracking_errors(tracking_uri, f"create a run in experiment {experiment_name!r}"):
        experiment_id = _experiment_id(client, tracking_uri, experiment_name)
        end_lost_runs(client, experiment_id)
        kept_by = {HEARTBEAT_TAG: str(Heartbeat.now())}
        run = client.create_run(
            experiment_id, run_name=run_name, tags={**_parent_tag(tracking_uri), **(tags or {}), **kept_by}
        )
    with _ended(
        client, RunReference(tracking_uri, experiment_id, str(run.info.run_id), socket.gethostname())
    ) as opened:
        log_params(client, opened.run_id, params or {})
        yield opened


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
        raise InvalidArgumentError(
            f"run {run_id} is {run.info.status}; a run that failed or was interrupted can be resumed"
        )
    return experiment_id, dict(run.data.tags)


@contextmanager
def resumed_run(tracking_uri: str, run_id: str) -> Iterator[RunReference]:
    """Opens a run again that has not finished, and ends it as `tracked_run` does.

    Args:
        tracking_uri: As `resolve_tracking_uri` gives it.
        run_id: A run that failed or was interrupted, or whose driver is gone.

    Raises:
        InvalidArgumentError: If it has finished, or is running.
        TrackingError: If the store has no such run, cannot be reached or refuses.
    """
    experiment_id, tags = check_resumable(tracking_uri, run_id)
    client = open_client(tracking_uri)
    with as_tracking_errors(tracking_uri, f"open run {run_id} again"):
        client.set_tag(run_id, HEARTBEAT_TAG, str(Heartbeat.now()))
        # What was asked of the run before it ended is not asked of what continues.
        for tag in (FAILURE_TAG, REQUEST_TAG):
            if tag in tags:
                client.delete_tag(run_id, tag)
        client.update_run(run_id, status="RUNNING")
    with _ended(client, RunReference(tracking_uri, experiment_id, run_id, socket.gethostname())) as opened:
        yield opened


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
    """Returns the steps that a run has metrics of, those of its best checkpoint (`best_...`) left out.

    Raises:
        TrackingError: If the store refuses.
    """
    return {int(point.step) for point in measured_points(run.tracking_uri, run.run_id)}


def measured_points(tracking_uri: str, run_id: str) -> list[Metric]:
    """Returns all points of a run's metrics, without those of its best checkpoint (`best_...`) and of its machine.

    Raises:
        TrackingError: If the store refuses.
    """
    with as_tracking_errors(tracking_uri, f"read the metrics of run {run_id}"):
        client = open_client(tracking_uri)
        names = [name for name in client.get_run(run_id).data.metrics if not name.startswith(("best_", "system/"))]
        return [point for name in names for point in client.get_metric_history(run_id, name)]


def log_params(client: MlflowClient, run_id: str, params: Mapping[str, Any]) -> None:
    """Writes parameters; long values are cut at MLflow's limit."""
    from mlflow.entities import Param

    entries = [Param(name, str(value)[:_PARAM_LIMIT]) for name, value in params.items()]
    for start in range(0, len(entries), 100):  # MLflow takes 100 at once
        client.log_batch(run_id, params=entries[start : start + 100])


def log_table(run: RunReference, table: TableVersion) -> None:
    """Records the table version as the run's MLflow dataset, and as tags that runs can be searched by.

    Raises:
        TrackingError: If the store refuses.
    """
    client = open_client(run.tracking_uri)
    with as_tracking_errors(run.tracking_uri, f"record {table.name} in run {run.run_id}"):
        from mlflow.entities import Dataset, DatasetInput, InputTag
        from mlflow.exceptions import MlflowException

        # Written here and not by MLflow's DeltaDatasetSource, which leaves out version 0 (mlflow 3.17: `if version`).
        source = json.dumps({"path": table.location, "delta_table_version": table.version})
        dataset = Dataset(
            name=table.name,
            digest=table.digest[:36],
            source_type="delta_table",
            source=source,
            profile=json.dumps({"num_rows": sum(table.rows.values()), "rows": dict(table.rows)}),
        )
        context = InputTag("mlflow.data.context", "training")
        given = [DatasetInput(dataset=dataset, tags=[context])]
        try:
            client.log_inputs(run.run_id, datasets=given)
        except MlflowException:
            # MLflow looks for the dataset and then adds it: of two runs that do so at once, one fails (mlflow 3.17).
            client.log_inputs(run.run_id, datasets=given)
        client.set_tag(run.run_id, TABLE_TAG, table.location[:TAG_LIMIT])
        client.set_tag(run.run_id, VERSION_TAG, str(table.version))


def log_text(run: RunReference, text: str, artifact_file: str) -> None:
    """Stores a text as an artifact of the run.

    Raises:
        TrackingError: If the store refuses.
    """
    with as_tracking_errors(run.tracking_uri, f"store {artifact_file} in run {run.run_id}"):
        open_client(run.tracking_uri).log_text(run.run_id, text, artifact_file)


def register_model(run_id: str, name: str, alias: str | None = None, tracking_uri: str | None = None) -> int:
    """Registers the checkpoint of a run as a new model version, so that `models:/name@alias` leads to it.

    Args:
        run_id: A finished run of `train`.
        name: Registered model; made when it is not there.
        alias: Alias that is set on (or moved to) the new version.
        tracking_uri: As for `train`.

    Returns:
        The new version's number.

    Raises:
        TrackingError: If the run has no checkpoint, or the store refuses.
    """
    from mlflow.exceptions import MlflowException

    uri = resolve_tracking_uri(tracking_uri)
    client = open_client(uri)
    with as_tracking_errors(uri, f"register run {run_id} as {name!r}"):
        run = client.get_run(run_id)
        digest = run.data.tags.get(DIGEST_TAG)
        if digest is None:
            raise TrackingError(
                f"run {run_id} has no tag {DIGEST_TAG}, so it holds no checkpoint; its status is {run.info.status}"
            )
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code not in EXISTS:
                raise
        source = f"{run.info.artifact_uri.rstrip('/')}/{CHECKPOINT_ARTIFACT}"
        version = client.create_model_version(name, source, run_id, tags={DIGEST_TAG: digest})
        if alias:
            client.set_registered_model_alias(name, alias, version.version)
        return int(version.version)


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
    """Artifacts of a local store lie beside it; MLflow's own default is relative to whoever opens the store."""
    store = local_store_path(tracking_uri)
    if store is None or not tracking_uri.startswith("sqlite:"):
        return None
    return (store.parent / "mlartifacts").as_uri()


def _end_failed(tracking_uri: str, run_id: str, status: str, reason: str) -> None:
    try:
        client = open_client(tracking_uri, _END_TIMEOUT_S)
        client.set_tag(run_id, FAILURE_TAG, reason[:TAG_LIMIT])
        client.set_terminated(run_id, status)
    except Exception as error:  # noqa: BLE001  the job's own error is on its way to the caller and must not be replaced
        logging.getLogger(__name__).warning("run %s could not be marked %s: %s", run_id, status, error)


def require_reachable(tracking_uri: str) -> None:
    """Asks a tracking server for a connection: MLflow itself retries for minutes before it says that there is none.

    Args:
        tracking_uri: As `resolve_tracking_uri` gives it; a store that is not a server is not asked.

    Raises:
        InvalidArgumentError: If the URI's port is not a number.
        TrackingError: If no server answers.
    """
    parsed = urlparse(tracking_uri)
    if parsed.scheme not in ("http", "https") or not parsed.hostname:
        return
    if os.environ.get(f"{parsed.scheme}_proxy") or os.environ.get(f"{parsed.scheme.upper()}_PROXY"):
        return
    try:
        port = parsed.port or (443 if parsed.scheme == "https" else 80)
    except ValueError as error:
        raise InvalidArgumentError(
            f"{without_password(tracking_uri)} is no address of a tracking server: {error}"
        ) from error
    try:
        socket.create_connection((parsed.hostname, port), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise TrackingError(
            f"no tracking server answers at {without_password(tracking_uri)} ({error}); start it, or correct "
            "tracking_uri or MLFLOW_TRACKING_URI"
        ) from error


@contextmanager
def as_tracking_errors(tracking_uri: str, doing: str) -> Iterator[None]:
    """Turns what MLflow, its database and its network raise into a `TrackingError` that names the store.

    Raises:
        MissingDependencyError: If MLflow is not installed.
        TrackingError: If the body raises one of these.
    """
    require("MLflow's tracking", "mlflow")
    from mlflow.exceptions import MlflowException

    known: tuple[type[Exception], ...] = (MlflowException, OSError)
    try:
        yield
    except known + _sql_errors() as error:
        raise TrackingError(f"{without_password(tracking_uri)} did not let us {doing}: {error}") from error


def _sql_errors() -> tuple[type[Exception], ...]:
    """The errors of the SQL store, if this process has one open: MLflow lets some of them through."""
    sqlalchemy = sys.modules.get("sqlalchemy.exc")
    return (sqlalchemy.SQLAlchemyError,) if sqlalchemy else ()


def require_writable(tracking_uri: str) -> None:
    """Checks that runs can be recorded: MLflow itself tries for two minutes to make its tables in a read-only folder.

    Args:
        tracking_uri: As `resolve_tracking_uri` gives it.

    Raises:
        InvalidArgumentError: If it is a file or folder of this machine that cannot be written.
        TrackingError: If no server answers.
    """
    require_reachable(tracking_uri)
    store = local_store_path(tracking_uri)
    if store is None or store.name == ":memory:":
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
def _quiet_migrations() -> Iterator[None]:
    """Keeps the 60 lines about table migrations that a new SQLite store prints off the user's terminal."""
    loggers = [logging.getLogger(name) for name in ("alembic", "mlflow.store.db.utils")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
