"""Trains a run again from its record alone (config, code, table version) and compares the results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ...errors import InvalidArgumentError
from ...job_keys import Job
from ...spark.session import SessionSource
from ...stores.data_files import write_files
from ...tracking.run_listing import get_run, open_existing_store
from ...tracking.runs import CHECKPOINT_ARTIFACT, ENTRYPOINT_TAG, as_tracking_errors
from ..record.code_record import code_of, installed_packages, read_code, read_packages
from ..trials.entrypoint import EntryPoint
from .comparison import changed_packages, differences
from .config_record import read_config
from .run_trial import TrainResult, run_trial

_PACKAGE = "lakelens"
# Imports the recorded module from the recorded folder, which Python searches first.
_LOADER = "reproduced.py"
_NOT_DETERMINISTIC = (
    "the run was not deterministic, so the order of its sums may differ; with "
    "reproducibility: {deterministic: true} a training on CPU is bit-for-bit identical when it is trained again"
)


@dataclass(frozen=True)
class Reproduction:
    """The result of training a run again.

    Attributes:
        origin: The run that was trained again.
        result: The new training.
        differences: Differences of metrics and weights from the origin's; empty if all are equal bit for bit.
        environment: What may explain a difference: changed code and packages, and a run that was not deterministic.
    """

    origin: str
    result: TrainResult
    differences: list[str]
    environment: list[str]

    @property
    def equal(self) -> bool:
        """Whether all metrics and weights are equal bit for bit."""
        return not self.differences


def reproduce(
    run_id: str,
    *,
    tracking_uri: str | None = None,
    checkpoint_dir: str | Path | None = None,
    spark: SessionSource | None = None,
    job: str | Job | None = None,
) -> Reproduction:
    """Trains a finished run again, in a new run that names its origin, and compares the results bit for bit.

    Config, table version and the code of the entry point come from the run's record; packages are the installed ones,
    and changed ones are listed. Equal results can be expected on CPU, with deterministic operations, one thread per
    rank and the same number of ranks.

    Args:
        run_id: A finished run.
        tracking_uri: As for `train`.
        checkpoint_dir: Instead of the run's.
        spark: As for `train`.
        job: As for `train`.

    Raises:
        InvalidArgumentError: If the run has not finished, is a trial of a search, or its code is not recorded.
        LakelensError: As `train`.

    Examples:
        >>> again = lakelens.reproduce(run.run_id)
        >>> again.origin == run.run_id, again.result.version
        (True, 0)
    """
    uri, client = open_existing_store(tracking_uri)
    with as_tracking_errors(uri, f"read run {run_id}"):
        origin = get_run(client, run_id)
    run_id = origin.info.run_id
    if origin.info.status != "FINISHED":
        raise InvalidArgumentError(
            f"run {run_id} is {origin.info.status}; only a finished run has a result to compare with. "
            f"lakelens train --resume {run_id} resumes one that failed or was interrupted"
        )
    with as_tracking_errors(uri, f"read run {run_id}"):
        if not client.list_artifacts(run_id, CHECKPOINT_ARTIFACT):
            raise InvalidArgumentError(
                f"run {run_id} has no checkpoint to compare with: a search records that of its best trial alone, in "
                "its own run. Train the trial's recorded experiment with lakelens train, and compare the metrics"
            )
    config = read_config(uri, run_id)
    tracking = config.tracking.model_copy(update={"uri": uri, "register_as": None})
    storage, name = config.checkpoint_storage, f"{origin.info.run_name}, again"
    if checkpoint_dir is not None:
        storage = storage.model_copy(update={"path": str(checkpoint_dir)})
    with _recorded_entrypoint(uri, run_id, origin.data.tags.get(ENTRYPOINT_TAG, config.entrypoint)) as entry:
        environment = _changes(uri, run_id, entry)
        result = run_trial(
            config.model_copy(update={"name": name, "job": None, "tracking": tracking, "checkpoint_storage": storage}),
            entrypoint=entry,
            spark=spark,
            reproduces=run_id,
            job=Job.of(job),
        )
    found = differences(uri, run_id, result.run_id)
    if found and not config.reproducibility.deterministic:
        environment.append(_NOT_DETERMINISTIC)
    return Reproduction(run_id, result, found, environment)


@contextlib.contextmanager
def _recorded_entrypoint(tracking_uri: str, run_id: str, name: str) -> Iterator[EntryPoint]:
    """Writes the recorded code into a folder and returns its entry point, under its own name."""
    target, _, class_name = name.rpartition(":")
    if target.split(".")[0] == _PACKAGE:
        yield EntryPoint.parse(name)
        return
    code = read_code(tracking_uri, run_id)
    if not code:
        raise InvalidArgumentError(
            f"run {run_id} has no recorded code: {name} was defined in a notebook or a console. Put the class into "
            "a file and train that"
        )
    with TemporaryDirectory(prefix="lakelens-reproduce-") as folder:
        write_files(Path(folder), code)
        path = Path(folder, Path(target).name if target.endswith(".py") else _LOADER)
        if not target.endswith(".py"):
            path.write_text(f"from {target} import {class_name}\n", encoding="utf-8")
        yield replace(EntryPoint.parse(f"{path}:{class_name}"), name=name)


def _changes(tracking_uri: str, run_id: str, entry: EntryPoint) -> list[str]:
    """Lists the differences from the record in lakelens' own code and in the packages."""
    recorded = read_code(tracking_uri, run_id) if entry.source is None else {}
    own = code_of(entry) if recorded else {}
    changed = [f"{entry.target} has changed since" for path, content in own.items() if recorded.get(path) != content]
    return changed + changed_packages(read_packages(tracking_uri, run_id), installed_packages())
