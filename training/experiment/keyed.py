"""Runs a training or a search under the key of a job: the first call begins it, a later one returns or resumes it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ...errors import CheckpointNotFoundError, RunNotResumableError, TrackingError
from ...job_keys import Job
from ...tracking.keyed_runs import KeyedRuns
from ...tracking.runs import RunReference, require_store, resolve_tracking_uri, steps_of
from ..configuration.experiment import ExperimentConfig
from .config_record import has_config, read_config, recorded_values
from .experiment_plan import ExperimentPlan
from .run_folder import require_writable

Result = TypeVar("Result")
_MOST_ATTEMPTS, _WAIT_S = 20, 3.0
# Takes the empty run of the job for a plan, and returns its id.
Claim = Callable[[ExperimentPlan], str]


def run_keyed(
    job: Job,
    config: ExperimentConfig,
    arguments: Mapping[str, Any],
    *,
    begin: Callable[[ExperimentConfig, Claim], Result],
    resume: Callable[[ExperimentConfig, str], Result],
    finished: Callable[[dict[str, Any]], Result],
    is_begun: Callable[[str, str], bool] = has_config,
) -> Result:
    """Does the work of a job once: begins it in the empty run that `Claim` gives, or resumes its recorded experiment.

    `finished` makes the result of a finished run; `is_begun` tells, by store and run, if there is something to resume.
    """
    config = config.model_copy(update={"job": job.key})
    uri = resolve_tracking_uri(config.tracking.uri)
    require_store(uri)
    compared = recorded_values(config)
    del compared["job"]
    compared.get("tracking", {}).pop("uri", None)  # the store is found already
    if arguments["command"] == "reproduce":
        compared.pop("name", None)  # which follows that of the origin
    runs = KeyedRuns(uri, job, {**arguments, **compared})
    attempt = 0
    claimed: list[str] = []
    while True:
        run = runs.settled()
        found = None if run is None else runs.result_of(run)
        if found is not None:
            return finished({**found, "tracking_uri": uri})
        try:
            if run is not None and is_begun(uri, run.info.run_id):
                recorded = read_config(uri, run.info.run_id, given=config)
                tracking = recorded.tracking.model_copy(update={"uri": uri})
                return resume(recorded.model_copy(update={"tracking": tracking}), run.info.run_id)

            def claim(plan: ExperimentPlan, run: Any = run) -> str:
                require_writable(plan.root)
                claimed.append(runs.claimed(run, plan.root, plan.config.tracking.experiment, plan.config.name))
                return claimed[-1]

            return begin(config, claim)
        except RunNotResumableError as error:
            if claimed:
                runs.release(claimed.pop(), error)
            # Another process was faster, and is followed; one may also hold the lock of a run that has ended.
            if attempt >= _MOST_ATTEMPTS:
                raise TrackingError(f"{error}; {attempt} attempts have found it so. Try again later") from error
            attempt += 1
            time.sleep(_WAIT_S)
        except BaseException as error:
            with contextlib.suppress(TrackingError):
                for run_id in claimed:
                    runs.release(run_id, error)
            raise


def require_checkpoints(job: str, plan: ExperimentPlan, run_id: str) -> None:
    """Checks that the checkpoints of a job's run, which has trained, are still there."""
    folder = plan.root / run_id
    run = RunReference(resolve_tracking_uri(plan.config.tracking.uri), "", run_id, "")
    is_there = folder.exists() and any(folder.iterdir())
    if is_there or plan.config.checkpoint_policy == "none" or not steps_of(run):
        return
    raise CheckpointNotFoundError(
        f"run {run_id} of job {job!r} has trained, and its checkpoints in {folder} are gone; put them back or mount "
        f"that folder here, {Job(job).how_to_start_over}"
    )
