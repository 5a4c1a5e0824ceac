"""The MLflow runs of a search's trials, below the search's own run."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .heartbeat import FAILURE_TAG, HEARTBEAT_TAG, Heartbeat
from .model_names import quoted
from .run_listing import all_pages
from .run_values import RunValues, tags_for
from .runs import PARENT_TAG, RunReference, as_tracking_errors, open_client

TRIAL_TAG = "lakelens.trial"


@dataclass(frozen=True)
class ChildRuns:
    """The runs of a search's trials.

    A trial that waits or is paused is SCHEDULED, MLflow's state of runs that will continue later.
    """

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
