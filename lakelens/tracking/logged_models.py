"""The MLflow model of a run: `runs:/<run id>/model`, tied by its digest to the run's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TrackingError
from .runs import DIGEST_TAG, EXISTS, as_tracking_errors, open_client, resolve_tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

MODEL_NAME = "model"
CHECKPOINT_RUN_KEY = "lakelens.run_id"


@dataclass(frozen=True)
class ModelFolder:
    """An MLflow model on disk that lacks only its `MLmodel` file.

    Attributes:
        path: Its folder.
        description: What the `MLmodel` file says, as far as it is known before the model is logged.
        digest: Digest of the checkpoint.
    """

    path: Path
    description: Mapping[str, Any]
    digest: str


def log_model(client: MlflowClient, run_id: str, folder: ModelFolder, step: int = 0) -> str:
    """Logs a folder as the model of a run; a second call with the same checkpoint finds the first one's model.

    Returns:
        The logged model's id.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    run = client.get_run(run_id)
    model = _model_of_run(client, run.info.experiment_id, run_id)
    if model is not None and model.status == LoggedModelStatus.READY:
        if model.tags.get(DIGEST_TAG) == folder.digest:
            return str(model.model_id)
        client.delete_logged_model(model.model_id)
        model = None
    if model is None:
        tags = {DIGEST_TAG: folder.digest, CHECKPOINT_RUN_KEY: run_id}
        experiment = run.info.experiment_id
        model = client.create_logged_model(experiment, MODEL_NAME, run_id, tags, model_type="keras")
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step)])
    description = {**folder.description, "artifact_path": model.artifact_location, "model_id": model.model_id}
    write_description(folder.path, description)
    client.log_model_artifacts(model.model_id, str(folder.path))
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return str(model.model_id)


def register_logged_model(run_id: str, name: str, alias: str | None = None, tracking_uri: str | None = None) -> int:
    """Registers the MLflow model of a run as a new version, which MLflow and lakelens both load.

    Args:
        run_id: A finished run of `train`.
        name: Registered model; made when it is not there.
        alias: Alias that is set on (or moved to) the new version.
        tracking_uri: As for `train`.

    Returns:
        The new version's number.

    Raises:
        TrackingError: If the run has no such model, or the store refuses.
    """
    from mlflow.exceptions import MlflowException

    uri = resolve_tracking_uri(tracking_uri)
    client = open_client(uri)
    with as_tracking_errors(uri, f"register the model of run {run_id} as {name!r}"):
        run = client.get_run(run_id)
        model = _model_of_run(client, run.info.experiment_id, run_id)
        if model is None:
            raise TrackingError(
                f"run {run_id} has no logged model {MODEL_NAME!r}; its status is {run.info.status}. Train again, or "
                "register its checkpoint with lakelens.tracking.runs.register_model, which MLflow itself does not load"
            )
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code not in EXISTS:
                raise
        tags = {DIGEST_TAG: model.tags[DIGEST_TAG], CHECKPOINT_RUN_KEY: run_id}
        # The location, not models:/<id>: that one MLflow looks up in its process's store, which may be another.
        version = client.create_model_version(name, model.artifact_location, run_id, tags, model_id=model.model_id)
        if alias:
            client.set_registered_model_alias(name, alias, version.version)
        return int(version.version)


def has_logged_model(client: MlflowClient, run_id: str) -> bool:
    """Returns whether a run has an MLflow model of `log_model`."""
    return _model_of_run(client, client.get_run(run_id).info.experiment_id, run_id) is not None


def logged_facts(folder: Path) -> dict[str, str]:
    """Reads what an MLflow model of `log_model` says of its checkpoint; empty for a folder that is none."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        description = YAML(typ="safe", pure=True).load((folder / "MLmodel").read_bytes())
    except (OSError, YAMLError):
        return {}
    facts = description.get("metadata") if isinstance(description, dict) else None
    return {name: str(value) for name, value in facts.items()} if isinstance(facts, dict) else {}


def _model_of_run(client: MlflowClient, experiment_id: str, run_id: str) -> LoggedModel | None:
    """Finds the logged model of a run."""
    token = None
    while True:
        # Not every store filters by run.
        page = client.search_logged_models([experiment_id], filter_string=f"name = '{MODEL_NAME}'", page_token=token)
        for model in page:
            if model.source_run_id == run_id and DIGEST_TAG in model.tags:
                return model
        token = page.token
        if not token:
            return None


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Writes the `MLmodel` file of a folder, which makes it an MLflow model."""
    from ruamel.yaml import YAML

    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    yaml = YAML()
    yaml.width = 1000
    with (folder / "MLmodel").open("w", encoding="utf-8") as file:
        yaml.dump({**description, "model_size_bytes": size}, file)
