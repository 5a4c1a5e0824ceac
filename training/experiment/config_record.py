"""The experiment as recorded in its run, so that the run can be resumed; without secrets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...errors import InvalidArgumentError
from ...tracking.run_listing import get_run, open_existing_store
from ...tracking.runs import RunReference, as_tracking_errors, open_client
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
    """Returns the keys of a config as JSON values.

    Values of storage options are hidden unless they are references (`env:NAME`), and so are variables of the ranks'
    environment with names like secrets.
    """
    values: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
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
    with as_tracking_errors(uri, f"read {CONFIG_ARTIFACT} of run {run_id}"), TemporaryDirectory() as folder:
        path = client.download_artifacts(get_run(client, run_id).info.run_id, CONFIG_ARTIFACT, folder)
        recorded: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return recorded


def read_config(tracking_uri: str | None, run_id: str) -> ExperimentConfig:
    """Reads the config of a run."""
    recorded = read_recorded(tracking_uri, run_id)
    hidden = [name for name, value in recorded["data"].get("storage_options", {}).items() if value == _HIDDEN]
    if hidden:
        raise InvalidArgumentError(
            f"run {run_id} was given storage option {hidden[0]}, whose value is not recorded; a run whose options are "
            "all of the form `env:NAME` can be resumed"
        )
    return ExperimentConfig.read(recorded)
