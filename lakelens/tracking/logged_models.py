"""The MLflow model of a run: `runs:/<run id>/model`, tied by its digest to the run's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import TrackingError
from .names import quoted
from .run_listing import all_pages
from .runs import DIGEST_TAG, EXISTS, as_tracking_errors, open_client, resolve_tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

MODEL_NAME = "model"
CHECKPOINT_RUN_KEY = "lakelens.run_id"
_FILE = "MLmodel"


@dataclass(frozen=True)
class ModelFolder:
    """An MLflow model on disk."""

    path: Path  # Its folder
    digest: str  # Digest of the checkpoint


def log_model(client: MlflowClient, run_id: str, folder: ModelFolder, step: int) -> None:
    """Logs a folder as the model of a run; a second call with the same checkpoint finds the first one's model."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus
    from mlflow.models import Model

    run = client.get_run(run_id)
    model = _model_of(client, run, folder.digest)
    if model is None:
        tags = {DIGEST_TAG: folder.digest, CHECKPOINT_RUN_KEY: run_id}
        model = client.create_logged_model(run.info.experiment_id, MODEL_NAME, run_id, tags)
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step)])
    if model.status != LoggedModelStatus.READY:
        described = Model.load(str(folder.path))
        described.artifact_path, described.model_id = model.artifact_location, model.model_id
        described.model_size_bytes = sum(file.stat().st_size for file in folder.path.rglob("*") if file.is_file())
        described.save(str(folder.path / _FILE))
        client.log_model_artifacts(model.model_id, str(folder.path))
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def register_model(run_id: str, name: str, alias: str | None = None, tracking_uri: str | None = None) -> int:
    """Registers the MLflow model of a run as one version, which MLflow and lakelens both load; a repeat finds it."""
    from mlflow.exceptions import MlflowException

    uri = resolve_tracking_uri(tracking_uri)
    client = open_client(uri)
    with as_tracking_errors(uri, f"register the model of run {run_id} as {name!r}"):
        run = client.get_run(run_id)
        digest = run.data.tags.get(DIGEST_TAG)
        model = None if digest is None else _model_of(client, run, digest)
        if model is None:
            raise TrackingError(
                f"run {run_id} has no model, as its training has not ended well; its status is {run.info.status}"
            )
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code not in EXISTS:
                raise
        # The location, not models:/<id>: that one MLflow looks up in its process's store, which may be another.
        source, tags = model.artifact_location, {DIGEST_TAG: digest, CHECKPOINT_RUN_KEY: run_id}
        number = version_with(client, name, tags)
        if number is None:
            number = int(client.create_model_version(name, source, run_id, tags, model_id=model.model_id).version)
        if alias:
            client.set_registered_model_alias(name, alias, str(number))
        return number


def version_numbers(client: MlflowClient, name: str) -> list[int]:
    """Lists the versions of a registered model, the newest first."""
    # Numbers only: results of a search in Unity Catalog lack tags and aliases; `get_model_version` gives them.
    # MLflow's filters have no escapes, so a name with both marks is found among all.
    where = {} if {"'", '"'} <= set(name) else {"filter_string": f"name = {quoted(name)}"}
    found = all_pages(client.search_model_versions, **where)
    return sorted((int(one.version) for one in found if one.name == name), reverse=True)


def version_with(client: MlflowClient, name: str, tags: Mapping[str, str]) -> int | None:
    """Finds the newest version of a registered model that has some tags."""
    for number in version_numbers(client, name):
        if tags.items() <= client.get_model_version(name, str(number)).tags.items():
            return number
    return None


def logged_facts(folder: Path) -> dict[str, str]:
    """Reads what an MLflow model of `log_model` records about its checkpoint; empty for another folder."""
    from mlflow.models import Model

    if not (folder / _FILE).is_file():
        return {}
    return {name: str(value) for name, value in (Model.load(str(folder)).metadata or {}).items()}


def _model_of(client: MlflowClient, run: Run, digest: str) -> LoggedModel | None:
    """Finds the logged model of a run that was made of a checkpoint."""
    models = [client.get_logged_model(one.model_id) for one in (run.outputs.model_outputs if run.outputs else ())]
    return next((model for model in models if model.tags.get(DIGEST_TAG) == digest), None)
