"""Whether a model is stale, and which model an alias points to."""

from __future__ import annotations

import functools
import json
import logging
import math
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import (
    InvalidArgumentError,
    ModelNotFoundError,
    TrackingError,
    VersionFilesMissingError,
    VersionNotFoundError,
)
from ..etl.spark.catalog import path_of
from ..etl.versions.changes import class_counts, diff, labels_at
from ..job_keys import Job
from ..log.data_files import require_files
from ..log.snapshot import Snapshot, open_snapshot
from ..options import named_options, whole_number
from ..results import ReadableResult
from ..spark.session import SessionSource, opened
from ..table import Table
from ..tracking.names import require_alias, require_model_name
from ..tracking.runs import TABLE_ID_TAG, as_tracking_errors, open_client, resolve_tracking_uri
from .evaluation.evaluate import DEFAULT_SPLIT, evaluate, evaluator_of
from .evaluation.evaluator import Evaluator
from .evaluation.result import EvaluationResult
from .model.registry import (
    PROMOTION_TAG_PREFIX,
    JobRecord,
    RegisteredVersion,
    finished_job,
    list_versions,
    move_alias,
    number_behind,
    record_job,
    register,
    registrable,
    version_of_number,
)
from .scoring.options import ModelSettings, RowOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A good model fails on a few damaged images; a diverged model fails on all.
DEFAULT_MAX_ERRORS = 0.01
_MOST_COMPARISONS = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Promotion(ReadableResult):
    """The decision about an alias.

    Attributes:
        name: The registered model.
        alias: The alias.
        version: The candidate's version.
        promoted: Whether this call moved the alias to the candidate.
        reason: Why, in a sentence.
        previous: The version that the alias pointed to before; None without one.
        metric: The metric of the comparison; None without one.
        score: The candidate's value of it; None if the candidate scored no row.
        previous_score: The previous version's value of it.
        table: `table@version` that both were evaluated on.
        split: Its split.
        artifacts: Where the evaluation is.
        errors: Share of the labelled rows that the candidate could not score, 0..1; None without an evaluation.
    """

    name: str
    alias: str
    version: int
    promoted: bool
    reason: str
    previous: int | None = None
    metric: str | None = None
    score: float | None = None
    previous_score: float | None = None
    table: str | None = None
    split: str | None = None
    artifacts: str | None = None
    errors: float | None = None


class ComparisonOptions(RowOptions, total=False):
    """The keywords of the evaluation that a promotion makes."""

    split: str | None
    predictions: str | Path | None


@named_options
def promote(
    candidate: str,
    name: str,
    alias: str = "champion",
    *,
    spark: SessionSource | None = None,
    if_better: str | None = None,
    on: str | Path | None = None,
    by: float = 0.0,
    max_errors: float = DEFAULT_MAX_ERRORS,
    tracking_uri: str | None = None,
    job: str | Job | None = None,
    **options: Unpack[ComparisonOptions],
) -> Promotion:
    """Registers a model and moves an alias to it if it is better than the alias's current model.

    The model is registered after its evaluation, whether it is better or not. The tag `lakelens.promotion.<alias>` of
    its version records both scores in any case. With `if_better`, a candidate with too many errors is never promoted,
    even if the alias has no model yet. If the alias already points to the model, the call changes nothing.

    The alias moves only if it still points to the version that was compared; if another job has moved it meanwhile, the
    model is compared with the new one. MLflow has no conditional move: a job that moves the alias between the last
    read and the write, a fraction of a second, is overwritten.

    Args:
        candidate: Any reference to a model of a run.
        name: Registered model; created if it does not exist.
        alias: The alias.
        spark: The session, or a function that opens one; only needed with `if_better`.
        if_better: Metric of an evaluation by which the candidate must be better, such as `accuracy` or `ece`; None
            promotes without a comparison.
        on: `table@version` that both are evaluated on.
        by: The candidate must be better by more than this; not negative.
        max_errors: Largest share of the labelled rows, 0..1, that a promoted model may fail to score. Only checked with
            `if_better`.
        tracking_uri: As for `train`.
        job: The key of a job, such as the id of a scheduler's task, or a `lakelens.Job`. A call that repeats key and
            arguments of one that has finished returns its result.
        **options: `split` and `predictions` as for `evaluate`; `engine`, `path_column`, `image_column`, `label_column`
            and `key` as for `score`.

    Raises:
        InvalidArgumentError: If MLflow allows no such name or alias, only one of `if_better` and `on` is given, the
            metric is unknown, or `by` or `max_errors` is out of its range.
        ModelNotFoundError, CheckpointError: As `registry.register`.
        TrackingError: If the store refuses, or the alias moved during each of five comparisons.
        LakelensError: As `evaluate`.

    Examples:
        >>> lakelens.promote(f"runs:/{run.run_id}", "photos").promoted
        True
    """
    require_model_name(name)
    require_alias(alias)
    _check_conditions(if_better, on, by, max_errors, has_spark=spark is not None)
    uri = resolve_tracking_uri(tracking_uri)
    rows = {name: value for name, value in options.items() if name in RowOptions.__annotations__}
    settings = ModelSettings(**cast("RowOptions", rows))
    split, predictions = options.get("split", DEFAULT_SPLIT), options.get("predictions")
    arguments: dict[str, object] = {"command": "promote", "model": candidate, "alias": alias, "if_better": if_better}
    arguments |= {"name": name, "on": str(on), "split": split, "by": by, "max_errors": max_errors}
    arguments |= {"predictions": None if predictions is None else str(predictions), "engine": settings.engine}
    arguments |= asdict(settings.columns)
    keyed = _PromotionJob(Job.of(job), arguments, uri)
    if (decided := keyed.finished(name, alias)) is not None:
        return decided
    model, run_id = registrable(candidate, uri)
    evaluator = evaluator_of(model)
    if if_better is not None and if_better not in evaluator.scores:
        raise InvalidArgumentError(
            f"if_better={if_better!r} is not a metric of an evaluation: {', '.join(evaluator.scores)}"
        )
    evaluated = None
    if spark is not None and on is not None:
        # The resolved model, even if the reference points to another one meanwhile
        evaluated = functools.partial(evaluate, spark, f"runs:/{run_id}", on, tracking_uri=uri, **options)
    mark = uuid.uuid4().hex
    for _ in range(_MOST_COMPARISONS):
        number = number_behind(name, alias, uri)
        previous = version_of_number(name, number, uri)
        if previous is not None and previous.digest == model.digest:
            reason, there = "the alias points to this model already", previous.version
            decided = keyed.decided_for(there) or Promotion(name, alias, there, False, reason, there)
            break
        result = None if evaluated is None else evaluated(compare=None if previous is None else previous.uri)
        version = register(f"runs:/{run_id}", name, tracking_uri=uri)
        decided = Promotion(name, alias, version.version, True, _without_comparison(number, previous), number)
        if result is not None and if_better is not None:
            decided = _decided(decided, result, evaluator, if_better, by, max_errors)
        if decided.promoted:
            keyed.record(decided, run_id, mark, is_done=False)
        # The record of a promotion is written once the alias has moved, and so names the version that it replaced.
        if not decided.promoted or move_alias(name, alias, version.version, previous=number, tracking_uri=uri):
            _record(decided, uri, mark)
            break
        logger.warning("Alias %r of model %r has moved during the comparison; comparing again.", alias, name)
    else:
        raise TrackingError(
            f"alias {alias!r} of model {name!r} has moved during each of {_MOST_COMPARISONS} comparisons: other jobs "
            "promote to it; promote again when they have ended"
        )
    keyed.record(decided, run_id, mark, is_done=True)
    return decided


@dataclass(frozen=True)
class _PromotionJob:
    """The job of a promotion, if it has one: what a tag of the model's run keeps of it."""

    job: Job | None
    arguments: Mapping[str, object]
    tracking_uri: str

    def finished(self, name: str, alias: str) -> Promotion | None:
        """Returns the decision of an earlier call, once its alias has moved and its record is complete."""
        found = None if self.job is None else finished_job(self.job, self.arguments, self.tracking_uri)
        if found is None:
            return None
        decided = Promotion(**found.result)
        if found.is_done:
            return decided
        # A call may have been killed after it had moved the alias; another promotion may have moved it on since.
        is_there = number_behind(name, alias, self.tracking_uri) == decided.version
        if is_there:
            _record(decided, self.tracking_uri, found.mark)
        if not is_there and not _is_recorded(decided, self.tracking_uri, found.mark):
            return None
        self.record(decided, found.run_id, found.mark, is_done=True)
        return decided

    def decided_for(self, version: int) -> Promotion | None:
        """Returns the decision about a version, which another call of the job may have recorded meanwhile."""
        # Without `from_start`, which would delete the record.
        found = None if self.job is None else finished_job(Job(self.job.key), self.arguments, self.tracking_uri)
        return Promotion(**found.result) if found is not None and found.result["version"] == version else None

    def record(self, decided: Promotion, run_id: str, mark: str, *, is_done: bool) -> None:
        """Records a decision; not done: the alias is about to move."""
        if self.job is not None:
            kept = JobRecord(asdict(decided), is_done=is_done, run_id=run_id, mark=mark)
            record_job(self.job, self.arguments, kept, self.tracking_uri)


def _without_comparison(number: int | None, previous: RegisteredVersion | None) -> str:
    """Why an alias moves if nothing is compared."""
    if number is None:
        return "no version had the alias"
    return "no comparison was requested" if previous is not None else f"version {number}, which had it, was deleted"


def _record(decided: Promotion, tracking_uri: str, mark: str) -> None:
    note = {**asdict(decided), "mark": mark, "decided_at": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    tag = PROMOTION_TAG_PREFIX + decided.alias
    doing = f"record the promotion of model {decided.name!r}"
    if decided.promoted:
        doing += f", whose alias {decided.alias!r} points to version {decided.version} now"
    with as_tracking_errors(tracking_uri, doing):
        open_client(tracking_uri).set_model_version_tag(decided.name, str(decided.version), tag, json.dumps(note))


def _is_recorded(decided: Promotion, tracking_uri: str, mark: str) -> bool:
    """Whether the version's own record of its last promotion is this one, which was written after the alias moved."""
    version = version_of_number(decided.name, decided.version, tracking_uri)
    try:
        note = json.loads("{}" if version is None else version.promotions.get(decided.alias, "{}"))
    except ValueError:
        return False
    return bool(note.get("mark") == mark)


def _check_conditions(
    if_better: str | None, on: str | Path | None, by: float, max_errors: float, *, has_spark: bool
) -> None:
    if (if_better is None) != (on is None):
        raise InvalidArgumentError("if_better (a metric) and on (table@version) go together: give both, or neither")
    if if_better is not None and not has_spark:
        raise InvalidArgumentError(f"if_better={if_better!r} evaluates models, which needs a Spark session")
    if not (_is_number(by) and 0 <= by < math.inf):
        raise InvalidArgumentError(f"by={by!r} (--by): give a finite number of at least 0; less promotes a worse model")
    _check_share("max_errors (--max-errors)", max_errors)


def _check_share(name: str, value: float) -> None:
    if not (_is_number(value) and 0 <= value <= 1):
        raise InvalidArgumentError(f"{name} = {value!r}: give a share of the rows, from 0 to 1")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _decided(
    asked: Promotion, result: EvaluationResult, evaluator: type[Evaluator], metric: str, by: float, max_errors: float
) -> Promotion:
    found = result.evaluation
    score, errors = found.scores.get(metric), found.errors / found.rows
    decided = replace(
        asked,
        metric=metric,
        score=score,
        table=f"{result.table}@{result.version}",
        split=result.split,
        artifacts=result.artifacts,
        errors=errors,
    )
    if errors > max_errors:
        reason = f"{found.errors} of {found.rows} rows have an error instead of a prediction"
        return replace(decided, promoted=False, reason=f"{reason}, more than the share max_errors={max_errors:g}")
    if score is None:  # a top-k of fewer classes; or all rows have errors, and max_errors allows it
        known = ", ".join(found.scores)
        raise InvalidArgumentError(f"if_better={metric!r} is not a metric of this evaluation, which has {known}")
    if result.other is None:
        return decided
    before = result.other.scores.get(metric)
    if before is None:
        reason = f"{metric} {score:.4f} against none: version {asked.previous} scored no row without an error"
        return replace(decided, reason=f"{reason}, which counts as worse")
    gain = before - score if metric in evaluator.less_is_better else score - before
    better = gain > by
    reason = f"{metric} {score:.4f} against {before:.4f}: {'better' if better else 'not better'}"
    return replace(decided, promoted=better, previous_score=before, reason=f"{reason} by more than {by:g}")


@dataclass(frozen=True, repr=False)
class Staleness(ReadableResult):
    """Whether a model is stale: its table has changed enough to train again."""

    stale: bool  # Whether it is; true if no version of the model was trained on the table, or its version is gone
    reason: str  # Why, in a sentence
    table: str  # Location of the table
    version: int  # The version that would be trained on
    trained_on: int | None = None  # The version that the newest registered model was trained on; None without one
    new_rows: int = 0  # Rows that were added or changed since
    drift: float = 0.0  # The largest change of a class's share of the rows, 0..1
    drifted_class: str | None = None  # The class of that change


@named_options
def staleness(
    name: str,
    table: str | Path,
    *,
    min_new_rows: int = 1,
    max_drift: float = 0.1,
    tracking_uri: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    spark: SessionSource | None = None,
) -> Staleness:
    """Decides whether a table has changed enough since the newest version of a registered model was trained on it."""
    whole_number("min_new_rows (--min-new-rows)", min_new_rows, least=0)
    _check_share("max_drift (--max-drift)", max_drift)
    named = Table.of(table, None, storage_options)
    if spark is not None:  # only a catalog table needs it
        named = Table.of(path_of(opened(spark), named.location), named.version, storage_options)
    now = open_snapshot(named)
    trained_on = _newest_training(name, now, tracking_uri)
    if trained_on is None:
        return Staleness(True, f"no version of model {name!r} was trained on this table", now.location, now.version)
    if trained_on >= now.version:
        reason = f"the newest model was trained on version {trained_on}"
        return Staleness(False, reason, now.location, now.version, trained_on)
    try:
        then = open_snapshot(named.at(trained_on))
        require_files(then)
    except (VersionNotFoundError, VersionFilesMissingError) as error:
        reason = f"the version that the newest model was trained on cannot be compared: {error}"
        return Staleness(True, reason, now.location, now.version, trained_on)
    found = diff(now.table, trained_on, now.version)
    new_rows = sum(found.added.values()) + sum(found.changed.values())
    # A renamed class is the same class.
    names = {number: name for name, number in labels_at(now).items()}
    renamed = {name: names.get(number, name) for name, number in labels_at(then).items()}
    before = {renamed.get(name, name): rows for name, rows in class_counts(then).items()}
    drifted_class, drift = _largest_drift(before, class_counts(now))
    enough, moved = new_rows >= min_new_rows, drift > max_drift
    reason = f"{new_rows} new rows since version {trained_on} ({'enough' if enough else f'fewer than {min_new_rows}'})"
    if drifted_class is not None:
        reason += f"; the share of {drifted_class!r} has moved by {drift:.3f} ({'more' if moved else 'not more'} than "
        reason += f"{max_drift:g})"
    return Staleness(enough or moved, reason, now.location, now.version, trained_on, new_rows, drift, drifted_class)


def _newest_training(name: str, now: Snapshot, tracking_uri: str | None) -> int | None:
    """Finds the version of this table that the newest version of a model was trained on; None if there is none."""
    try:
        versions = list_versions(name, tracking_uri)
    except (ModelNotFoundError, InvalidArgumentError):  # no such model, or no store yet
        return None
    for one in versions:
        table, _, version = (one.trained_on or "").rpartition("@")
        named = table.rstrip("/") == now.location.rstrip("/") and version.isdecimal()
        # A table that was deleted and written again at its path has the same numbers.
        if named and _table_id_of(one, tracking_uri) in (None, now.table_id):
            return int(version)
    return None


def _table_id_of(version: RegisteredVersion, tracking_uri: str | None) -> str | None:
    """Reads the id of the table that a registered version was trained on; None if its run has not recorded it."""
    uri = resolve_tracking_uri(tracking_uri)
    with as_tracking_errors(uri, f"read run {version.run_id}"):
        tags: Mapping[str, str] = open_client(uri).get_run(str(version.run_id)).data.tags
    return tags.get(TABLE_ID_TAG)


def _largest_drift(before: Mapping[str, int], now: Mapping[str, int]) -> tuple[str | None, float]:
    rows_before, rows_now = sum(before.values()), sum(now.values())
    if not rows_before or not rows_now:
        return None, 0.0
    moved = {
        name: abs(now.get(name, 0) / rows_now - before.get(name, 0) / rows_before) for name in sorted({*before, *now})
    }
    largest = max(moved, key=lambda name: moved[name])
    return largest, moved[largest]
