"""Resolves a run, an alias, an experiment (its best run) or a path to a checkpoint."""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CheckpointError, CheckpointNotFoundError, ModelNotFoundError
from ...locations import absolute_path, has_scheme, without_password
from ...tracking.logged_models import CHECKPOINT_RUN_KEY, MODEL_NAME, logged_facts, version_numbers
from ...tracking.names import metric_of
from ...tracking.run_listing import all_pages, get_run, open_existing_store
from ...tracking.runs import (
    CHECKPOINT_ARTIFACT,
    DIGEST_TAG,
    METRIC_TAG,
    SEARCH_TAG,
    as_tracking_errors,
    resolve_tracking_uri,
)
from .checkpoint import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FORMS = (
    "runs:/<run id>, runs:/<run id>/<artifact folder>, models:/<name>@<alias>, models:/<name>/<version>, "
    "experiment:<id or name>[?metric=<metric>], search:<run id> or the path of a checkpoint folder"
)

_MODEL_ALIAS = re.compile(r"^models:/+(?P<name>.+)@(?P<alias>[^/@]+)$")
_MODEL_VERSION = re.compile(r"^models:/+(?P<name>.+)/(?P<version>\d+|latest)$")
_RUN = re.compile(r"^runs:/+(?P<run>[^/]+)(?:/(?P<artifact>.+?))?/?$")
_EXPERIMENT_PREFIX = "experiment:"
_SEARCH_PREFIX = "search:"
_RUNS_PER_PAGE = 1000
_METRIC_KEY = "?metric="
# The metric that chose the best epoch, for runs that do not record it.
_DEFAULT_GOAL = "val_loss:min"


@dataclass(frozen=True)
class ModelRef:
    """A resolved model whose files match their digests."""

    uri: str  # The model as the caller named it
    path: Path  # Local folder of the checkpoint; a downloaded one lives as long as this object
    digest: str  # The checkpoint's digest
    run_id: str | None  # The MLflow run that trained it, if known
    metadata: Mapping[str, Any]  # The checkpoint's metadata
    # The store in which the checkpoint was found; None for a checkpoint named by its path
    tracking_uri: str | None = None
    run_name: str | None = None  # Name of the run through which it was found
    _keeper: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint."""
        return Checkpoint(self.path, self.digest, self.metadata)

    @property
    def class_names(self) -> list[str] | None:
        """Class names by label number."""
        return self.checkpoint.class_names

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images that the model takes."""
        return self.checkpoint.input_shape


def resolve_model(uri: str | Path, tracking_uri: str | None = None) -> ModelRef:
    """Resolves `uri` to a checkpoint."""
    text = str(uri).strip()
    for prefix, find in _FINDERS.items():
        if text.startswith(prefix):
            with as_tracking_errors(resolve_tracking_uri(tracking_uri), f"look up {text}"):
                return find(text, tracking_uri)
    if not text or (has_scheme(text) and not text.startswith("file:")):
        raise ModelNotFoundError(f"{text!r} names no model; give {FORMS}")
    path = Path(absolute_path(text))
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointNotFoundError as error:
        raise ModelNotFoundError(f"{error}. A model is {FORMS}") from error
    return ModelRef(text, checkpoint.path, checkpoint.digest, checkpoint.metadata.get("run_id"), checkpoint.metadata)


def _of_run(uri: str, tracking_uri: str | None) -> ModelRef:
    match = _RUN.match(uri)
    if match is None:
        raise ModelNotFoundError(f"{uri!r} names no run; give runs:/<run id> or runs:/<run id>/<artifact folder>")
    run = get_run(_client(tracking_uri), match["run"])
    # The model that MLflow loads is made from the checkpoint; only the checkpoint has the digest.
    artifact = match["artifact"] if match["artifact"] not in (None, MODEL_NAME) else CHECKPOINT_ARTIFACT
    return _download_run(uri, run, artifact, tracking_uri)


def _of_registered(uri: str, tracking_uri: str | None) -> ModelRef:
    from mlflow.exceptions import MlflowException

    client = _client(tracking_uri)
    alias, number = _MODEL_ALIAS.match(uri), _MODEL_VERSION.match(uri)
    try:
        if alias is not None:
            version = client.get_model_version_by_alias(alias["name"], alias["alias"])
        elif number is not None and number["version"] == "latest":
            numbers = version_numbers(client, number["name"])
            if not numbers:
                raise ModelNotFoundError(_unknown_model(uri, client, "the model has no version"))
            version = client.get_model_version(number["name"], str(numbers[0]))
        elif number is not None:
            version = client.get_model_version(number["name"], number["version"])
        else:
            raise ModelNotFoundError(
                f"{uri!r} names no registered model; give models:/<name>@<alias> or models:/<name>/<version>"
            )
        run = _run_of_logged(client, uri, version.tags)
        if run is not None:
            return _download_run(uri, run, CHECKPOINT_ARTIFACT, tracking_uri)
        source = client.get_model_version_download_uri(version.name, version.version)
    except MlflowException as error:
        raise ModelNotFoundError(_unknown_model(uri, client, error.message)) from error
    return _download(uri, source, version.run_id or None, tracking_uri)


def _run_of_logged(client: MlflowClient, uri: str, facts: Mapping[str, Any]) -> Run | None:
    """Finds the run whose checkpoint an MLflow model was made from, by the model's metadata; None for other models."""
    if DIGEST_TAG not in facts or CHECKPOINT_RUN_KEY not in facts:
        return None
    run = get_run(client, facts[CHECKPOINT_RUN_KEY])
    require_digest_of_run(uri, facts[DIGEST_TAG], run)
    return run


def require_digest_of_run(uri: str, digest: str, run: Run) -> None:
    """Checks that a model is the model of its run."""
    recorded = run.data.tags.get(DIGEST_TAG)
    if recorded != digest:
        raise CheckpointError(
            f"{uri}: its checkpoint has digest {digest}, and run {run.info.run_id}, which trained it, wrote "
            f"{recorded}: they are not the same model. Register the run again: "
            f"lakelens models promote runs:/{run.info.run_id} NAME"
        )


def _of_experiment(uri: str, tracking_uri: str | None) -> ModelRef:
    from mlflow.exceptions import MlflowException

    text = uri.removeprefix(_EXPERIMENT_PREFIX).strip()
    before, key, after = text.rpartition(_METRIC_KEY)
    name, metric = (before.strip(), after.strip()) if key else (text, None)
    client = _client(tracking_uri)
    experiment = None
    if name.isdigit():
        with contextlib.suppress(MlflowException):
            experiment = client.get_experiment(name)
    if experiment is None and name:
        experiment = client.get_experiment_by_name(name)
    if experiment is None:
        known = ", ".join(f"{one.experiment_id} ({one.name})" for one in client.search_experiments(max_results=20))
        store = without_password(client.tracking_uri)
        raise ModelNotFoundError(f"{uri!r}: {store} has no experiment {name!r}; it has {known or 'none'}")
    options = {"filter_string": "attributes.status = 'FINISHED'", "max_results": _RUNS_PER_PAGE}
    runs = all_pages(client.search_runs, experiment_ids=[experiment.experiment_id], **options)
    run = _best_run(uri, runs, metric)
    return _download_run(uri, run, CHECKPOINT_ARTIFACT, tracking_uri)


def _of_search(uri: str, tracking_uri: str | None) -> ModelRef:
    """Finds the best trial of a search, whose checkpoint the search's own run holds."""
    run = get_run(_client(tracking_uri), uri[len(_SEARCH_PREFIX) :].strip())
    if SEARCH_TAG not in run.data.tags:
        raise ModelNotFoundError(f"{uri!r}: this run is not a search; name it as runs:/{run.info.run_id}")
    if DIGEST_TAG not in run.data.tags:
        raise ModelNotFoundError(
            f"{uri!r}: the search is {run.info.status} and has no best trial yet; wait for it, or name a trial's run"
        )
    return _download_run(uri, run, CHECKPOINT_ARTIFACT, tracking_uri)


def _best_run(uri: str, runs: Iterable[Run], metric: str | None) -> Run:
    """Chooses the run with the best value of the metric that chose its checkpoint; of equals the oldest."""
    by_goal: dict[str, list[tuple[float, int, str, Run]]] = {}
    for run in runs:
        goal = run.data.tags.get(METRIC_TAG, _DEFAULT_GOAL)
        name, _, mode = goal.rpartition(":")
        value = metric_of(run, f"best_{name}")
        if value is not None and not math.isnan(value):
            loss = -float(value) if mode == "max" else float(value)
            by_goal.setdefault(goal, []).append((loss, run.info.start_time, run.info.run_id, run))
    known = ", ".join(f"{goal} ({len(found)})" for goal, found in sorted(by_goal.items()))
    if not known:
        raise ModelNotFoundError(
            f"{uri!r}: the experiment has no finished run with a metric that chose a checkpoint; train one, or name a "
            "run: runs:/<run id>"
        )
    chosen = [goal for goal in sorted(by_goal) if metric in (None, goal, goal.rpartition(":")[0])]
    if not chosen:
        raise ModelNotFoundError(f"{uri!r}: no finished run was decided by metric {metric!r}; they were by {known}")
    if len(chosen) > 1:
        name = uri.partition(_METRIC_KEY)[0]
        example = chosen[0] if metric else chosen[0].rpartition(":")[0]
        raise ModelNotFoundError(
            f"{uri!r}: its finished runs were decided by different metrics, whose values cannot be compared: {known}. "
            f"Name one, as {name}{_METRIC_KEY}{example}"
        )
    return min(by_goal[chosen[0]], key=lambda entry: entry[:3])[3]


def _download_run(uri: str, run: Run, artifact: str, tracking_uri: str | None) -> ModelRef:
    found = _download(uri, f"{run.info.artifact_uri}/{artifact}", run.info.run_id, tracking_uri)
    return replace(found, run_name=run.info.run_name or None)


def _download(uri: str, source: str, run_id: str | None, tracking_uri: str | None) -> ModelRef:
    """Opens the checkpoint at an artifact URI; artifacts on this machine's disk are not copied."""
    if source.startswith(("file:", "/")):
        return _open(uri, Path(absolute_path(source)), run_id, source, tracking_uri)
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    keeper = tempfile.TemporaryDirectory(prefix="lakelens-model-")
    try:
        path = Path(download_artifacts(artifact_uri=source, dst_path=keeper.name, tracking_uri=tracking_uri))
    # Artifact stores raise their own SDKs' errors; any of them means that the artifact cannot be fetched.
    except (MlflowException, OSError, ImportError, RuntimeError, ValueError) as error:
        keeper.cleanup()
        reason = without_password(f"the artifact {source} cannot be fetched: {error}")
        raise ModelNotFoundError(f"{uri!r}: {reason}") from error
    return _open(uri, path, run_id, source, tracking_uri, keeper)


def _open(
    uri: str,
    path: Path,
    run_id: str | None,
    source: str,
    tracking_uri: str | None,
    keeper: tempfile.TemporaryDirectory[str] | None = None,
) -> ModelRef:
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointNotFoundError as error:
        run = _run_of_logged(_client(tracking_uri), uri, logged_facts(path))
        if run is not None:
            return _download_run(uri, run, CHECKPOINT_ARTIFACT, tracking_uri)
        raise ModelNotFoundError(
            f"{uri!r}: its artifact {source} is missing or not a checkpoint ({error}). Only runs of lakelens.train "
            "have one; a run that failed or is still running has none yet"
        ) from error
    store, metadata = resolve_tracking_uri(tracking_uri), checkpoint.metadata
    trained_by = run_id or metadata.get("run_id")
    return ModelRef(uri, checkpoint.path, checkpoint.digest, trained_by, metadata, store, _keeper=keeper)


def _client(tracking_uri: str | None) -> MlflowClient:
    return open_existing_store(tracking_uri)[1]


def _unknown_model(uri: str, client: MlflowClient, reason: str) -> str:
    names = [model.name for model in client.search_registered_models(max_results=20)]
    return (
        f"{uri!r} is unknown to the registry {client._registry_uri}: {reason}. "  # noqa: SLF001
        f"It has {', '.join(names) if names else 'no models'}"
    )


_FINDERS: Mapping[str, Callable[[str, str | None], ModelRef]] = {
    "runs:": _of_run,
    "models:": _of_registered,
    _EXPERIMENT_PREFIX: _of_experiment,
    _SEARCH_PREFIX: _of_search,
}
