"""Jobs by their keys: a call finds the run that an earlier call of its key has begun, and returns or resumes it.

The run carries the key and the arguments as tags, so that any machine that reaches the store finds it. A retry of a
scheduler repeats the command; which of the calls does the work is decided here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, RunNotResumableError, TrackingError
from ..job_keys import Job, check_arguments, recorded_arguments
from ..progress import shown_progress
from .heartbeat import FAILURE_TAG, HEARTBEAT_TAG, LOST_AFTER_S, RENEW_S, Heartbeat, end_lost_runs
from .names import metric_of
from .run_listing import runs_of_job
from .run_values import TAG_LIMIT
from .runs import (
    ATTEMPT_TAG,
    JOB_TAG,
    METRIC_TAG,
    REQUEST_TAG,
    SEARCH_TAG,
    RunReference,
    as_tracking_errors,
    created_run,
    open_again,
    open_client,
    read_artifact,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_ARGUMENTS_TAG = "lakelens.job.arguments"
# Of a run whose job was started over in another run.
_FORMER_TAG = "lakelens.job.former"
_RESULT = "result.json"
_POLL_S = 1.0
_SAY_EVERY_S = 30.0
# How long a follower waits for a store that does not answer.
_OUTAGE_S = 120.0
# How long a takeover waits after it asks a process to pause, and again after it asks the process to end.
_TAKEOVER_S = 1.25 * RENEW_S


class KeyedRuns:
    """The runs of one key in one store; at most one of them, the first to begin, is the job's."""

    def __init__(self, tracking_uri: str, job: Job, arguments: Mapping[str, Any]) -> None:
        self.job = job
        self._uri = tracking_uri
        self._arguments = dict(arguments)
        self._client = open_client(tracking_uri)

    def settled(self) -> Run | None:
        """Returns the run of the key once no other process works on it; None if there is none."""
        # Follows such a process until its run has ended, or ends that first if the job takes over.
        while True:
            with self._asking("find the run"):
                run = self._found()
                if run is None:
                    return None
                if not self.job.from_start:
                    check_arguments(self.job, run.data.tags.get(_ARGUMENTS_TAG, "{}"), self._arguments)
                if run.info.status == "RUNNING":
                    end_lost_runs(self._client, run.info.experiment_id)
                    run = self._client.get_run(run.info.run_id)
            if run.info.status == "RUNNING":
                self._end(run) if self.job.takeover else self._follow(run)
            elif self.job.from_start:
                self._set_aside(run.info.run_id)
            else:
                return run

    def result_of(self, run: Run) -> dict[str, Any] | None:
        """Returns what `record_result` has stored in a run that has finished; None if it has not finished."""
        if run.info.status != "FINISHED":
            return None
        found: dict[str, Any] = json.loads(read_artifact(self._uri, run.info.run_id, _RESULT))
        return found

    def claimed(self, run: Run | None, root: Path, experiment: str, name: str | None) -> str:
        """Takes or creates the run of the key; RunNotResumableError if another process has worked on it meanwhile."""
        # Of calls at the same time one gets it, by a lock on a file in the checkpoints' folder. Without locks, or with
        # two folders, the run that was created first stays and the other goes; both calls continue only if the clocks
        # of their machines differ by more than the time between them.
        with self._alone(root), self._asking("claim the run"):
            found = self._found()
            is_other = (run and run.info.run_id) != (found and found.info.run_id)
            if is_other or (run is not None and found is not None and _attempt(found) != _attempt(run)):
                raise RunNotResumableError(f"another process has begun job {self.job.key!r}")
            if found is not None:
                _count_attempt(self._client, found)
                open_again(self._client, found.info.run_id, found.data.tags)
                return str(found.info.run_id)
            arguments = recorded_arguments(self._arguments, TAG_LIMIT)
            tags = {JOB_TAG: self.job.key, ATTEMPT_TAG: "1", _ARGUMENTS_TAG: arguments}
            created = created_run(self._client, self._uri, experiment, name, tags)
            first = self._found()
            if first is not None and first.info.run_id != created:
                self._client.delete_tag(created, JOB_TAG)
                self._client.delete_run(created)
                raise RunNotResumableError(f"another process has begun job {self.job.key!r}")
            return created

    def _found(self) -> Run | None:
        from mlflow.entities import ViewType

        runs = runs_of_job(self._client, self.job.key, ViewType.ALL)
        active = [run for run in runs if run.info.lifecycle_stage == "active"]
        if not active and runs and not self.job.from_start:
            raise InvalidArgumentError(
                f"run {runs[-1].info.run_id} of job {self.job.key!r} was deleted in MLflow; restore it (mlflow runs "
                f"restore --run-id {runs[-1].info.run_id}), {self.job.how_to_start_over}"
            )
        return active[0] if active else None

    def _follow(self, run: Run) -> None:
        """Waits until a run has ended, and reports its progress."""
        run_id, said_at = run.info.run_id, time.monotonic()
        metric = run.data.tags.get(METRIC_TAG, "").rpartition(":")[0]
        with shown_progress(f"job {self.job.key}") as bar:
            bar.say(f"job {self.job.key}: run {run_id} is at work ({_worker(run)}); following it")
            answered_at = time.monotonic()
            while _is_at_work(run):
                time.sleep(_POLL_S)
                try:
                    with self._asking("follow the run"):
                        run, answered_at = self._client.get_run(run_id), time.monotonic()
                except TrackingError:  # a server that starts again
                    if time.monotonic() - answered_at > _OUTAGE_S:
                        raise
                    continue
                with self._asking("follow the run"):
                    if time.monotonic() - said_at >= _SAY_EVERY_S:
                        said_at = time.monotonic()
                        value = metric_of(run, metric)
                        bar.say(f"job {self.job.key}: {_worker(run)}" + (f", {metric} {value:.4g}" if value else ""))
                        end_lost_runs(self._client, run.info.experiment_id)

    def _end(self, run: Run) -> None:
        """Asks the process that works on a run to pause, then to end; if it stays silent, marks the run as failed."""
        run_id, first = run.info.run_id, run.data.tags.get(HEARTBEAT_TAG)
        # A request to pause does not end the process of a search.
        for request in ("leave", "leave") if SEARCH_TAG in run.data.tags else ("pause", "kill"):
            with self._asking("end the process"):
                self._client.set_tag(run_id, REQUEST_TAG, request)
                deadline = time.monotonic() + _TAKEOVER_S
                while time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                    end_lost_runs(self._client, run.info.experiment_id)
                    run = self._client.get_run(run_id)
                    if not _is_at_work(run):
                        return
        # Two clocks may differ: a process that lives has renewed its heartbeat meanwhile.
        if run.data.tags.get(HEARTBEAT_TAG) != first:
            raise TrackingError(
                f"job {self.job.key!r}: {_worker(run)} works on run {run_id} and has not ended within "
                f"{2 * _TAKEOVER_S:.0f} s after it was asked to; end it there, or try again"
            )
        with self._asking("end the run"):
            self._client.set_tag(run_id, FAILURE_TAG, f"{_worker(run)} is silent, and another call has taken over")
            self._client.set_terminated(run_id, "FAILED")

    def _set_aside(self, run_id: str) -> None:
        """Takes the key from a run, unless a process has begun to work on it."""
        with self._asking("start over"):
            if not _is_at_work(self._client.get_run(run_id)):
                self._client.set_tag(run_id, _FORMER_TAG, self.job.key)
                self._client.delete_tag(run_id, JOB_TAG)

    def release(self, run_id: str, error: BaseException) -> None:
        """Ends a run that was claimed and that an error has left before its work began."""
        with self._asking("end the run"):
            if self._client.get_run(run_id).info.status == "RUNNING":
                self._client.set_tag(run_id, FAILURE_TAG, f"{type(error).__name__}: {error}"[:TAG_LIMIT])
                self._client.set_terminated(run_id, "FAILED")

    @contextlib.contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        with as_tracking_errors(self._uri, f"{doing} of job {self.job.key!r}"):
            yield

    @contextlib.contextmanager
    def _alone(self, root: Path) -> Iterator[None]:
        """Holds the lock of the key; it ends with the process."""
        path = root / f".job-{self.job.digest}.lock"
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                root.mkdir(parents=True, exist_ok=True)
                fcntl.flock(stack.enter_context(path.open("w")), fcntl.LOCK_EX)
            yield


def record_result(run: RunReference, result: Mapping[str, Any]) -> None:
    """Stores the result of a job in its run, which is about to finish; a store's URI may have a password."""
    kept = {name: value for name, value in result.items() if name != "tracking_uri"}
    with as_tracking_errors(run.tracking_uri, f"store the result of run {run.run_id}"):
        open_client(run.tracking_uri).log_text(run.run_id, json.dumps(kept, default=str) + "\n", _RESULT)


def count_attempt(run: RunReference, key: str) -> None:
    """Counts a further attempt of a job; RunNotResumableError if the run is not the job's any more."""
    with as_tracking_errors(run.tracking_uri, f"count the attempts of run {run.run_id}"):
        client = open_client(run.tracking_uri)
        found = client.get_run(run.run_id)
        if found.data.tags.get(JOB_TAG) != key:
            raise RunNotResumableError(f"job {key!r} was started over in another run than {run.run_id}")
        _count_attempt(client, found)


def _attempt(run: Run) -> tuple[str, str | None]:
    """What changes when a process works on a run."""
    return run.info.status, run.data.tags.get(ATTEMPT_TAG)


def _count_attempt(client: MlflowClient, run: Run) -> None:
    client.set_tag(run.info.run_id, ATTEMPT_TAG, str(int(run.data.tags.get(ATTEMPT_TAG, "0")) + 1))


def _is_at_work(run: Run) -> bool:
    """Returns whether a process keeps a run; MLflow leaves a deleted one as it was."""
    return bool(run.info.status == "RUNNING" and run.info.lifecycle_stage == "active")


def _worker(run: Run) -> str:
    beat = Heartbeat.parse(run.data.tags.get(HEARTBEAT_TAG))
    if beat is None:
        return "a process without a heartbeat"
    silent_s = max(0.0, time.time() - beat.time)
    if silent_s < 2 * RENEW_S:
        return str(beat.process)
    return f"{beat.process}, silent for {silent_s:.0f} s; after {LOST_AFTER_S:.0f} s it counts as gone"
