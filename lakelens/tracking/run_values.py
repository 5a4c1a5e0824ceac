"""Writes metrics, parameters and tags into a run. A value that the store refuses is a warning of the run, no error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .heartbeat import HEARTBEAT_TAG, Heartbeat
from .names import NAMES_TAG, RunNames, names_of, names_text

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

logger = logging.getLogger(__name__)

# What the store has refused, one line each.
WARNINGS_TAG = "lakelens.warnings"
# MLflow's limit for a tag's value is 8,000 characters, of some backends 5,000.
TAG_LIMIT = 5000
_PARAM_LIMIT = 6000
# MLflow takes 100 parameters and 1,000 metrics at once, and 1 MB.
_PARAMS_AT_ONCE = 100
_METRICS_AT_ONCE = 500
_SHOWN = 200
# A store that answers so may refuse this value, or be out of order.
_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST")


class RunValues:
    """The values of one run, written in their order."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        run = client.get_run(run_id)
        self._client, self._run_id = client, run_id
        self._names: RunNames = names_of(run)
        self._refused = run.data.tags.get(WARNINGS_TAG, "").splitlines()
        self._told: set[tuple[str, str]] = set()

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Writes parameters; long values are cut at MLflow's limit."""
        from mlflow.entities import Param

        own = self._names_of(params)
        entries = [(name, Param(own[name], str(value)[:_PARAM_LIMIT])) for name, value in params.items()]
        self._log("parameter", entries, _PARAMS_AT_ONCE, lambda found: self._log_batch(params=found))

    def log_metrics(self, metrics: Mapping[str, float], step: int, time_ms: int) -> None:
        """Writes metrics."""
        from mlflow.entities import Metric

        own, entries = self._names_of(metrics), []
        for name, value in metrics.items():
            try:
                entries.append((name, Metric(own[name], float(value), time_ms, step)))
            except (TypeError, ValueError) as error:
                self._refuse("metric", name, value, error)
        self._log("metric", entries, _METRICS_AT_ONCE, lambda found: self._log_batch(metrics=found))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Writes tags; long values are cut."""
        own = self._names_of(tags)
        entries = [(name, (own[name], value[:TAG_LIMIT])) for name, value in tags.items()]
        self._log("tag", entries, 1, lambda found: self._client.set_tag(self._run_id, *found[0]))

    def _log_batch(self, params: Sequence[Param] = (), metrics: Sequence[Metric] = ()) -> None:
        self._client.log_batch(self._run_id, params=params, metrics=metrics, synchronous=True)

    def _log(
        self, kind: str, entries: Sequence[tuple[str, Any]], at_once: int, write: Callable[[Sequence[Any]], object]
    ) -> None:
        """Writes entries by name, several at once; if the store refuses these, each alone."""
        from mlflow.exceptions import MlflowException

        for start in range(0, len(entries), at_once):
            part = entries[start : start + at_once]
            try:
                write([entry for _, entry in part])
            except MlflowException as error:
                self._require_refusal(error)
                if len(part) > 1:
                    self._log(kind, part, 1, write)
                else:
                    name, entry = part[0]
                    self._refuse(kind, name, getattr(entry, "value", entry), error)

    def _require_refusal(self, error: Exception) -> None:
        """Raises the error again unless the store refuses a value: it takes others then."""
        if getattr(error, "error_code", None) not in _REFUSALS:
            raise error
        self._client.set_tag(self._run_id, HEARTBEAT_TAG, str(Heartbeat.now()))

    def _names_of(self, values: Mapping[str, Any]) -> dict[str, str]:
        known = len(self._names.changed)
        own = self._names.of(values)
        new = dict(list(self._names.changed.items())[known:])
        if new:
            self._client.set_tag(self._run_id, NAMES_TAG, names_text(self._names.changed, TAG_LIMIT))
            told = ", ".join(f"{name!r} as {written!r}" for name, written in new.items())
            logger.warning("MLflow refuses some names; run %s has %s", self._run_id, told)
        return own

    def _refuse(self, kind: str, name: str, value: Any, error: Exception) -> None:
        if (kind, name) in self._told:
            return
        self._told.add((kind, name))
        lines = str(error).splitlines()
        line = f"{kind} {name!r} = {str(value)[:_SHOWN]!r} was refused: {lines[0][:_SHOWN] if lines else error!r}"
        logger.warning("run %s lacks a value: %s", self._run_id, line)
        if line not in self._refused:
            self._refused.append(line)
            self._client.set_tag(self._run_id, WARNINGS_TAG, "\n".join(self._refused)[:TAG_LIMIT])


def tags_for(tags: Mapping[str, str]) -> dict[str, str]:
    """Gives the tags of a new run under names that MLflow takes, and the tag that keeps the names."""
    names = RunNames()
    own = names.of(tags)
    kept = {NAMES_TAG: names_text(names.changed, TAG_LIMIT)} if names.changed else {}
    return {own[name]: value for name, value in tags.items()} | kept
