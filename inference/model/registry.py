"""Registered models: their versions, aliases and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import InvalidArgumentError, ModelNotFoundError, TrackingError
from ...job_keys import Job, check_arguments, recorded_arguments
from ...tracking.logged_models import register_model, version_numbers, version_with
from ...tracking.names import require_alias, require_model_name
from ...tracking.run_listing import experiment_names, open_existing_store
from ...tracking.run_values import TAG_LIMIT
from ...tracking.runs import (
    DIGEST_TAG,
    TABLE_TAG,
    VERSION_TAG,
    as_tracking_errors,
    local_store_path,
    open_client,
    resolve_tracking_uri,
)
from ...training.checkpoints.references import ModelRef, require_digest_of_run, resolve_model

if TYPE_CHECKING:
    from mlflow import MlflowClient

PROMOTION_TAG_PREFIX = "lakelens.promotion."


@dataclass(frozen=True)
class RegisteredVersion:
    """One version of a registered model."""

    name: str  # The registered model
    version: int  # Its number
    aliases: tuple[str, ...]  # The aliases that point to it
    digest: str | None  # Digest of its checkpoint at registration; None if lakelens did not register it
    run_id: str | None  # The run that trained it; None if not known
    trained_on: str | None  # `table@version`; None if not known
    created_ms: int  # When it was registered, in milliseconds since 1970
    promotions: Mapping[str, str]  # The decision for each alias that it was proposed for, as JSON

    @property
    def uri(self) -> str:
        """The reference to it."""
        return f"models:/{self.name}/{self.version}"


def list_versions(name: str, tracking_uri: str | None = None) -> list[RegisteredVersion]:
    """Lists the versions of a registered model, the newest first."""
    uri, client = open_existing_store(tracking_uri)
    with as_tracking_errors(uri, f"list the versions of model {name!r}"):
        aliases = _aliases(client, name)
        return [_described(client, name, number, aliases) for number in version_numbers(client, name)]


def register(reference: str, name: str, tracking_uri: str | None = None) -> RegisteredVersion:
    """Registers the model that a reference points to; a model is not registered twice under one name."""
    require_model_name(name)
    model, run_id = registrable(reference, tracking_uri)
    uri = model.tracking_uri or resolve_tracking_uri(tracking_uri)
    client = open_client(uri)
    with as_tracking_errors(uri, f"register {reference} as {name!r}"):
        number = version_with(client, name, {DIGEST_TAG: model.digest})
        if number is None:
            number = register_model(run_id, name, tracking_uri=uri)
    return version_of(name, number, uri)


def registrable(reference: str, tracking_uri: str | None = None) -> tuple[ModelRef, str]:
    """Finds a model that can be registered, and its run; arguments and errors are those of `register`."""
    model = resolve_model(reference, tracking_uri)
    return model, _require_run(model.tracking_uri or tracking_uri, model)


def set_alias(name: str, version: int, alias: str, tracking_uri: str | None = None) -> RegisteredVersion:
    """Points an alias to a version, after comparing its files with the digest in its run."""
    require_alias(alias)
    uri = resolve_tracking_uri(tracking_uri)
    _require_run(uri, resolve_model(f"models:/{name}/{version}", uri))
    client = open_client(uri)
    with as_tracking_errors(uri, f"set alias {alias!r} of model {name!r}"):
        client.set_registered_model_alias(name, alias, str(version))
    return version_of(name, version, uri)


def move_alias(name: str, alias: str, version: int, *, previous: int | None, tracking_uri: str) -> bool:
    """Points an alias to a version if it still points to `previous`; returns whether it did."""
    # MLflow cannot do both at once: a move between the last read and the write is overwritten.
    _require_run(tracking_uri, resolve_model(f"models:/{name}/{version}", tracking_uri))
    client = open_client(tracking_uri)
    with as_tracking_errors(tracking_uri, f"set alias {alias!r} of model {name!r}"):
        found = _aliases(client, name).get(alias)
        if (None if found is None else int(found)) != previous:
            return False
        client.set_registered_model_alias(name, alias, str(version))
    return True


class JobRecord(NamedTuple):
    """What a tag of a model's run keeps of a job that registers it."""

    result: dict[str, Any]  # What the job returns
    is_done: bool  # Whether it has; else it was about to move an alias
    run_id: str  # The model's run
    mark: str  # Which the version's own record of the promotion has too


def finished_job(job: Job, arguments: Mapping[str, Any], tracking_uri: str) -> JobRecord | None:
    """Returns the record of a job that has decided, one that is done before others; None without one."""
    from mlflow.entities import ViewType

    tag = _job_tag(job)
    uri, client = open_existing_store(tracking_uri)
    with as_tracking_errors(uri, f"look for job {job.key!r}"):
        # The run of a model may have been deleted since.
        runs = client.search_runs(list(experiment_names(client)), f"tags.`{tag}` != ''", ViewType.ALL)
        if job.from_start:  # a call that is killed must leave no older result
            for run in runs:
                client.delete_tag(run.info.run_id, tag)
            return None
    found: list[JobRecord] = []
    for run in runs:
        try:
            kept = json.loads(run.data.tags[tag])
            is_done = bool(kept.get("is_done", True))
            record = JobRecord(dict(kept["result"]), is_done, run.info.run_id, str(kept.get("mark", "")))
            recorded = str(kept["arguments"])
        except (ValueError, KeyError, TypeError) as error:
            raise TrackingError(
                f"the record of job {job.key!r} in run {run.info.run_id} is damaged ({error}); {job.how_to_start_over}"
            ) from error
        check_arguments(job, recorded, arguments)
        found.append(record)
    return min(found, key=lambda record: not record.is_done, default=None)


def record_job(job: Job, arguments: Mapping[str, Any], record: JobRecord, tracking_uri: str) -> None:
    """Keeps the record of a job in a tag of the run of its model."""
    kept = {"key": job.key, "arguments": recorded_arguments(arguments, TAG_LIMIT // 2), **record._asdict()}
    with as_tracking_errors(tracking_uri, f"record job {job.key!r} in run {record.run_id}"):
        open_client(tracking_uri).set_tag(record.run_id, _job_tag(job), json.dumps(kept, ensure_ascii=False))


def _job_tag(job: Job) -> str:
    return f"lakelens.job.{job.digest}"


def version_of(name: str, version: int, tracking_uri: str | None = None) -> RegisteredVersion:
    """Describes one version."""
    uri, client = open_existing_store(tracking_uri)
    with as_tracking_errors(uri, f"read version {version} of model {name!r}"):
        aliases = _aliases(client, name)
        if version in version_numbers(client, name):
            return _described(client, name, version, aliases)
    raise ModelNotFoundError(f"model {name!r} has no version {version}")


def version_behind(name: str, alias: str, tracking_uri: str | None = None) -> RegisteredVersion | None:
    """Finds the version that an alias points to; None if alias, version, model or store does not exist (any more)."""
    return version_of_number(name, number_behind(name, alias, tracking_uri), tracking_uri)


def version_of_number(name: str, number: int | None, tracking_uri: str | None = None) -> RegisteredVersion | None:
    """Describes the version that `number_behind` found; None if it was deleted: some stores keep its alias."""
    try:
        return None if number is None else version_of(name, number, tracking_uri)
    except ModelNotFoundError:
        return None


def number_behind(name: str, alias: str, tracking_uri: str | None = None) -> int | None:
    """Finds the number that an alias points to; its version may have been deleted. None as for `version_behind`."""
    uri = resolve_tracking_uri(tracking_uri)
    path = local_store_path(uri)
    if path is not None and not path.exists():
        return None
    client = open_client(uri)
    with as_tracking_errors(uri, f"read alias {alias!r} of model {name!r}"):
        try:
            number = _aliases(client, name).get(alias)
        except ModelNotFoundError:
            return None
    return None if number is None else int(number)


def parse_version(reference: str) -> tuple[str, int]:
    """Reads `models:/name/3` or `name/3`."""
    name, slash, number = reference.removeprefix("models:").lstrip("/").rpartition("/")
    if not slash or not name or not number.isdecimal():
        raise InvalidArgumentError(
            f"{reference!r} is not a version of a registered model; give models:/<name>/<version>"
        )
    return name, int(number)


def _require_run(tracking_uri: str | None, model: ModelRef) -> str:
    """Gives the id of the run that trained a model, whose digest must be that of the checkpoint."""
    from mlflow.exceptions import MlflowException

    if model.run_id is None:
        raise ModelNotFoundError(
            f"{model.uri!r}: the run that trained it is unknown; only models of runs are registered"
        )
    _, client = open_existing_store(tracking_uri)
    try:
        run = client.get_run(model.run_id)
    except MlflowException as error:
        raise ModelNotFoundError(
            f"{model.uri!r}: its run {model.run_id} is not in the store: {error.message}"
        ) from error
    require_digest_of_run(model.uri, model.digest, run)
    return model.run_id


def _aliases(client: MlflowClient, name: str) -> Mapping[str, Any]:
    """Gives the version that each alias of a model points to."""
    from mlflow.exceptions import MlflowException

    try:
        aliases: Mapping[str, Any] = client.get_registered_model(name).aliases
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise ModelNotFoundError(f"the registry has no model {name!r}: {error.message}") from error
    return aliases


def _described(client: MlflowClient, name: str, number: int, aliases: Mapping[str, Any]) -> RegisteredVersion:
    from mlflow.exceptions import MlflowException

    version = client.get_model_version(name, str(number))
    trained_on = None
    try:
        tags = client.get_run(version.run_id).data.tags if version.run_id else {}
    except MlflowException:  # the run was deleted
        tags = {}
    if TABLE_TAG in tags:
        trained_on = f"{tags[TABLE_TAG]}@{tags.get(VERSION_TAG)}"
    return RegisteredVersion(
        name=name,
        version=number,
        aliases=tuple(sorted(alias for alias, other in aliases.items() if int(other) == number)),
        digest=version.tags.get(DIGEST_TAG),
        run_id=version.run_id or None,
        trained_on=trained_on,
        created_ms=int(version.creation_timestamp),
        promotions={
            tag.removeprefix(PROMOTION_TAG_PREFIX): text
            for tag, text in version.tags.items()
            if tag.startswith(PROMOTION_TAG_PREFIX)
        },
    )
