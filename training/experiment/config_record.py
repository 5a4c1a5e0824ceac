"""The experiment as recorded in its run, so that the run can be resumed; without secrets."""

from __future__ import annotations

import json
import re
from typing import Any

from ...errors import InvalidArgumentError
from ...locations import without_password
from ...tracking.run_listing import get_run, open_existing_store
from ...tracking.runs import RunReference, as_tracking_errors, open_client, read_artifact
from ..configuration.experiment import ExperimentConfig

CONFIG_ARTIFACT = "experiment.json"
_HIDDEN = "***"
_SECRET = re.compile("secret|token|password|key|credential", re.IGNORECASE)


def log_config(run: RunReference, config: ExperimentConfig) -> None:
    """Stores the resolved config."""
    text = json.dumps(recorded_values(config), indent=2) + "\n"
    with as_tracking_errors(run.tracking_uri, f"store {CONFIG_ARTIFACT} in run {run.run_id}"):
        open_client(run.tracking_uri).log_text(run.run_id, text, CONFIG_ARTIFACT)


def recorded_values(config: ExperimentConfig) -> dict[str, Any]:
    """Returns the keys of a config as JSON values, without storage options and variables that may be secrets."""
    values: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    if values.get("tracking", {}).get("uri"):
        values["tracking"]["uri"] = without_password(values["tracking"]["uri"])
    options = values["data"].get("storage_options", {})
    for name, value in options.items():
        options[name] = value if value.startswith("env:") else _HIDDEN
    env = values.get("resources", {}).get("env", {})
    for name in [name for name in env if _SECRET.search(name)]:
        del env[name]  # ranks have the driver's environment
    return values


def read_recorded(tracking_uri: str | None, run_id: str) -> dict[str, Any]:
    """Reads the keys that `log_config` has stored."""
    uri, client = open_existing_store(tracking_uri)
    with as_tracking_errors(uri, f"read run {run_id}"):
        run = get_run(client, run_id)
    recorded: dict[str, Any] = json.loads(read_artifact(uri, run.info.run_id, CONFIG_ARTIFACT))
    return recorded


def has_config(tracking_uri: str, run_id: str) -> bool:
    """Returns whether a run has a config: one that ended before it has nothing to resume."""
    client = open_client(tracking_uri)
    with as_tracking_errors(tracking_uri, f"list the artifacts of run {run_id}"):
        return any(found.path == CONFIG_ARTIFACT for found in client.list_artifacts(run_id))


def read_config(tracking_uri: str | None, run_id: str, given: ExperimentConfig | None = None) -> ExperimentConfig:
    """Reads the config of a run; storage options and variables may have secrets, and come from a given one."""
    recorded = read_recorded(tracking_uri, run_id)
    if given is not None and given.data.storage_options:
        recorded["data"]["storage_options"] = given.data.storage_options
    if given is not None and given.resources.env:
        recorded.setdefault("resources", {})["env"] = dict(given.resources.env)
    hidden = [name for name, value in recorded["data"].get("storage_options", {}).items() if value == _HIDDEN]
    if hidden:
        raise InvalidArgumentError(
            f"run {run_id} was given storage option {hidden[0]}, whose value is not recorded; a run whose options are "
            "all of the form `env:NAME` can be resumed"
        )
    return ExperimentConfig.read(recorded)
