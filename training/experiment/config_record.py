"""The experiment as its run remembers it, so that the run can be resumed; it holds no secrets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...errors import InvalidArgumentError
from ...tracking.runs import RunReference, as_tracking_errors, log_text, open_client
from ..configuration.experiment import ExperimentConfig

CONFIG_ARTIFACT = "experiment.json"
_HIDDEN = "***"
_SECRET = re.compile("secret|token|password|key|credential", re.IGNORECASE)


def log_config(run: RunReference, config: ExperimentConfig, ranks: int, version: int) -> None:
    """Stores the config, with the version that was read, and the number of ranks.

    Values of storage options are hidden unless they are references (`env:NAME`), and so are variables of the ranks'
    environment that are named like secrets.

    Raises:
        TrackingError: If the store refuses.
    """
    values = config.model_dump(mode="json", exclude_unset=True)
    values["data"]["version"] = version
    options = values["data"].get("storage_options", {})
    for name, value in options.items():
        options[name] = value if value.startswith("env:") else _HIDDEN
    env = values.get("resources", {}).get("env", {})
    for name in [name for name in env if _SECRET.search(name)]:
        del env[name]  # ranks have the driver's environment
    text = json.dumps({"config": values, "np": ranks}, indent=2)
    log_text(run, text + "\n", CONFIG_ARTIFACT)


def read_config(tracking_uri: str, run_id: str) -> tuple[ExperimentConfig, int]:
    """Reads the config of a run, and the number of its ranks.

    Raises:
        InvalidArgumentError: If the config lacks what was hidden.
        TrackingError: If there is no such run, or it has no config.
    """
    with as_tracking_errors(tracking_uri, f"read {CONFIG_ARTIFACT} of run {run_id}"), TemporaryDirectory() as folder:
        path = open_client(tracking_uri).download_artifacts(run_id, CONFIG_ARTIFACT, folder)
        recorded: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    hidden = [name for name, value in recorded["config"]["data"].get("storage_options", {}).items() if value == _HIDDEN]
    if hidden:
        raise InvalidArgumentError(
            f"run {run_id} was given storage option {hidden[0]}, whose value is not recorded; a run whose options are "
            "all of the form `env:NAME` can be resumed"
        )
    return ExperimentConfig.read(recorded["config"]), int(recorded["np"])
