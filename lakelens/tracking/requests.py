"""The MLflow runs of a search's trials, and requests of other processes to a running training or search."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import InvalidArgumentError
from .heartbeat import FAILURE_TAG, HEARTBEAT_TAG, LOST_AFTER_S, RENEW_S, Heartbeat
from .names import quoted
from .run_listing import RunSummary, all_pages, get_run, open_existing_store, show_run
from .run_values import RunValues, tags_for
from .runs import PARENT_TAG, REQUEST_TAG, SEARCH_TAG, RunReference, as_tracking_errors, open_client

if TYPE_CHECKING:
    from mlflow import MlflowClient

TRIAL_TAG = "lakelens.trial"


@dataclass(frozen=True)
class ChildRuns:
    """The runs of a search's trials; one that waits or is paused is SCHEDULED, as MLflow calls it."""

    parent: RunReference  # The search's run

    def known(self) -> dict[int, RunReference]:
        """Finds the trials' runs, by the trial's number."""
        parent = self.parent
        where = f"tags.`{PARENT_TAG}` = {quoted(parent.run_id)}"
        with as_tracking_errors(parent.tracking_uri, f"list the trials of run {parent.run_id}"):
            search = open_client(parent.tracking_uri).search_runs
            # Of two runs of one trial the oldest has trained; it is the last here.
            order = ["start_time DESC"]
            runs = all_pages(search, experiment_ids=[parent.experiment_id], filter_string=where, order_by=order)
        numbers = {run.info.run_id: run.data.tags.get(TRIAL_TAG, "") for run in runs}
        return {int(number): self._reference(run_id) for run_id, number in numbers.items() if number.isdecimal()}

    def create(self, trial: int, name: str, tags: Mapping[str, str], params: Mapping[str, Any]) -> RunReference:
        """Creates the run of a trial that waits."""
        parent = self.parent
        with as_tracking_errors(parent.tracking_uri, f"create a run for trial {trial} of run {parent.run_id}"):
            client = open_client(parent.tracking_uri)
            known = {PARENT_TAG: parent.run_id, TRIAL_TAG: str(trial)}
            run = client.create_run(parent.experiment_id, run_name=name, tags=tags_for({**tags, **known}))
            reference = self._reference(str(run.info.run_id))
            RunValues(client, reference.run_id).log_params(params)
            client.update_run(reference.run_id, status="SCHEDULED")
            return reference

    def mark(self, run: RunReference, status: str, tags: Mapping[str, str], failure: str | None = None) -> None:
        """Sets the status and the tags of a trial's run."""
        with as_tracking_errors(run.tracking_uri, f"mark run {run.run_id} as {status}"):
            client = open_client(run.tracking_uri)
            given = dict(tags) | ({FAILURE_TAG: failure} if failure else {})
            if status == "RUNNING":
                given[HEARTBEAT_TAG] = str(Heartbeat.now())
            RunValues(client, run.run_id).set_tags(given)
            if not failure and FAILURE_TAG in client.get_run(run.run_id).data.tags:
                client.delete_tag(run.run_id, FAILURE_TAG)
            if status in ("RUNNING", "SCHEDULED"):
                client.update_run(run.run_id, status=status)
            else:
                client.set_terminated(run.run_id, status)

    def _reference(self, run_id: str) -> RunReference:
        parent = self.parent
        return RunReference(parent.tracking_uri, parent.experiment_id, run_id, socket.gethostname())


logger = logging.getLogger(__name__)

# Of a training, `pause`: write a checkpoint and end; `kill`: end at once.
Action = Literal["pause", "kill"]
# Of a search, `pause` its trials; `resume` them after that; `stop`: end with the best trial so far; `leave`: pause its
# trials and end, so that another process can resume it.
SearchAction = Literal["pause", "resume", "stop", "leave"]
_ACTIONS = {*get_args(Action), *get_args(SearchAction)}
_POLL_S = 2.0
# A process that lives has renewed its heartbeat meanwhile.
_SILENT_S = 3 * RENEW_S


def ask(run_id: str, action: Action, tracking_uri: str | None = None, wait_s: float = 60.0) -> RunSummary:
    """Asks a running training to pause or to end, and waits until it has."""
    details = show_run(run_id, tracking_uri)
    found = details.summary
    if details.tags.keys() & {SEARCH_TAG, TRIAL_TAG}:
        raise InvalidArgumentError(
            f"run {found.run_id} belongs to a search, whose trials pause and end together: see lakelens search --help"
        )
    if found.state != "RUNNING":
        raise InvalidArgumentError(f"run {found.run_id} is {found.state}; only a running training can {action}")
    uri, client = _send(found.run_id, action, tracking_uri)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        time.sleep(min(1.0, wait_s))
        with as_tracking_errors(uri, f"read run {found.run_id}"):
            if get_run(client, found.run_id).info.status != "RUNNING":
                break
    return show_run(found.run_id, tracking_uri).summary


def ask_search(run_id: str, action: SearchAction, tracking_uri: str | None = None) -> None:
    """Asks a search in another process to pause, to resume, or to end with its best trial so far."""
    details = show_run(run_id, tracking_uri)
    if SEARCH_TAG not in details.tags:
        raise InvalidArgumentError(f"run {run_id} is not a search; give the run of a search, not of one of its trials")
    if details.summary.state != "RUNNING":
        raise InvalidArgumentError(
            f"no process runs the search {run_id}, so there is nothing to {action}; it is {details.summary.state}. "
            f"lakelens search resume {run_id} resumes one that has not finished"
        )
    heartbeat = Heartbeat.parse(details.tags.get(HEARTBEAT_TAG))
    silent_s = 0.0 if heartbeat is None else time.time() - heartbeat.time
    if silent_s > _SILENT_S:
        raise InvalidArgumentError(
            f"{heartbeat.process if heartbeat else ''}, which ran the search {run_id}, has given no sign of life for "
            f"{silent_s:.0f} s. If it is gone, the run counts as failed after {LOST_AFTER_S:.0f} s; try again then"
        )
    if action == "resume" and details.tags.get(REQUEST_TAG) != "pause":
        raise InvalidArgumentError(f"the search {run_id} is not paused; a process runs it")
    _send(details.summary.run_id, action, tracking_uri)


def _send(run_id: str, action: Action | SearchAction, tracking_uri: str | None) -> tuple[str, MlflowClient]:
    uri, client = open_existing_store(tracking_uri)
    with as_tracking_errors(uri, f"ask run {run_id} to {action}"):
        client.set_tag(run_id, REQUEST_TAG, action)
    return uri, client


@contextmanager
def requests_heard(run: RunReference, on_request: Callable[[str], None]) -> Iterator[None]:
    """Calls `on_request`, in a thread, for each request of another process while the body runs."""
    over = threading.Event()
    # A daemon: a call that hangs must not keep the interpreter.
    thread = threading.Thread(target=_listen, args=(run, on_request, over), name="lakelens-requests", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _listen(run: RunReference, on_request: Callable[[str], None], over: threading.Event) -> None:
    heard = client = None
    while not over.wait(_POLL_S):
        try:
            client = client or open_client(run.tracking_uri)
            asked = client.get_run(run.run_id).data.tags.get(REQUEST_TAG)
        except Exception as error:  # noqa: BLE001  the store's absence is the writer's to report
            logger.debug("run %s was not read: %s", run.run_id, error)
            continue
        if asked in _ACTIONS and asked != heard and not over.is_set():
            heard = asked
            on_request(asked)
