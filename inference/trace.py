"""Traces a prediction back to its model, run, code and data, and a run forward to the predictions of its model."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, LakelensError, PredictionsSchemaError, TrackingError
from ..etl.files import local_path, local_uri
from ..log.data_files import batches_of, open_stored, stored_columns
from ..log.snapshot import Snapshot, open_snapshot
from ..stores.data_files import rows_in_utc
from ..table import Table, Version
from ..tracking.datasets import Scoring
from ..tracking.names import quoted
from ..tracking.run_listing import RunDetails, details_of, open_existing_store, run_of_digest, show_run
from ..tracking.runs import as_tracking_errors
from ..training.tasks.registry import task_of_columns
from .scoring.predictions import SHARED, columns_of, mark_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from mlflow import MlflowClient

# A probability per class, or the like: too long to read.
_LISTS = "ARRAY<FLOAT>"
# Columns of an image table that describe where an image came from.
_SOURCE = (
    *("path", "content_hash", "source", "source_length", "source_modified", "batch_id"),
    *("label", "label_name", "split"),
)
_COUNTED = ("checkpoint_digest", "table", "version", "scored_at")


@dataclass(frozen=True)
class PredictionTrace:
    """Where one prediction comes from.

    Attributes:
        prediction: Its row in the predictions table, without lists of numbers.
        source: The image's row in the version of the table that was scored, without the image; empty if it is in
            `missing`.
        run: The run that trained the model; None if it is in `missing`.
        code: Entry point, git commit, whether the tree was dirty, and where the files lie.
        trained_on: Table and version that the model was trained on.
        registered: Registered versions of the model, as `models:/<name>/<version>`.
        missing: What could not be traced, and why.
    """

    prediction: Mapping[str, Any]
    source: Mapping[str, Any]
    run: RunDetails | None
    code: Mapping[str, Any]
    trained_on: str | None
    registered: Sequence[str]
    missing: Sequence[str]


@dataclass(frozen=True)
class RunTrace:
    """The predictions of a run's model.

    Attributes:
        run: The run.
        recorded: Scorings that the run has recorded: those by runs:/, models:/ or experiment: of this store.
        found: Scorings in the predictions tables that were searched, as rows by table, version and time.
    """

    run: RunDetails
    recorded: Sequence[Scoring]
    found: Sequence[Mapping[str, Any]]


def trace(
    predictions: str | Path,
    path: str,
    *,
    version: Version = None,
    tracking_uri: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> list[PredictionTrace]:
    """Traces every prediction of one image, the latest first.

    Args:
        predictions: Path or URI of the predictions table, also as `table@version`.
        path: The image, as the column `path` has it; a local file also by its path.
        version: Version of the predictions table: a number, a time, or None for the latest.
        tracking_uri: As for `train`.
        storage_options: Access to an object store, under delta-rs' names.

    Raises:
        InvalidArgumentError: If no prediction has that path, or the store does not exist.
        NotADeltaTableError, VersionNotFoundError, PredictionsSchemaError: If the predictions table does not exist.
        TrackingError: If the store does not answer.

    Examples:
        >>> path = table.read().first().path
        >>> origin = lakelens.trace("tables/predictions", path)[0]
        >>> origin.run.summary.run_id == run.run_id, origin.source["split"] in ("train", "validation", "test")
        (True, True)
    """
    snapshot = _predictions(Table.of(predictions, version, storage_options))
    task = task_of_columns(snapshot.schema)
    shown = SHARED if task is None else [name for name, kind in columns_of(task).items() if kind != _LISTS]
    rows = next(filter(None, (list(rows_with(snapshot, "path", form, shown)) for form in _forms(path))), [])
    if not rows:
        raise InvalidArgumentError(
            f"{snapshot.location}@{snapshot.version} has no prediction of {path!r}; give a value of its column path "
            "or the whole path of a file, as in /a/b.jpg"
        )
    uri, client = open_existing_store(tracking_uri)
    rows.sort(key=lambda row: row["scored_at"], reverse=True)
    with as_tracking_errors(uri, "trace a prediction"):
        return [_traced(client, row, storage_options) for row in rows]


def _forms(path: str) -> Iterator[str]:
    """Yields a path unchanged, and as an ingest writes it if it is that of a local file."""
    yield path
    if path.startswith("file:/"):
        yield local_uri(local_path(path))
        yield local_uri(os.fsencode("/" + path.removeprefix("file:").lstrip("/")))  # not quoted
    elif "://" not in path:
        yield local_uri(os.fsencode(Path(path).absolute()))


def trace_run(
    run_id: str,
    *,
    search: Sequence[str | Path] = (),
    tracking_uri: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> RunTrace:
    """Traces the predictions of a run's model.

    Args:
        run_id: The run.
        search: Predictions tables to search: the run has no record of scorings by a checkpoint's path, nor of those
            that a store did not accept.
        tracking_uri: As for `train`.
        storage_options: Access to an object store, under delta-rs' names.

    Raises:
        ModelNotFoundError: If the run does not exist.
        NotADeltaTableError, PredictionsSchemaError: If a table is not a predictions table.
        InvalidArgumentError, TrackingError: If the store does not exist or does not answer.

    Examples:
        >>> [one.table_version for one in lakelens.trace_run(run.run_id).recorded]
        [0]
    """
    details = show_run(run_id, tracking_uri)
    found: list[dict[str, Any]] = []
    digest = details.summary.digest
    for table in search if digest is not None else ():
        snapshot = _predictions(Table.of(table, None, storage_options))
        counted = Counter(
            (row["table"], row["version"], row["scored_at"].isoformat())
            for row in rows_with(snapshot, "checkpoint_digest", str(digest), _COUNTED)
        )
        for (image_table, number, when), rows in sorted(counted.items()):
            entry = {"predictions": snapshot.location, "table": image_table, "table_version": number}
            found.append({**entry, "scored_at": when, "rows": rows})
    return RunTrace(details, details.scored, found)


def rows_with(snapshot: Snapshot, column: str, value: str, wanted: Collection[str]) -> Iterator[dict[str, Any]]:
    """Reads those rows of a version that have a value, without Spark; reads only row groups that may have it."""
    import pyarrow.compute as pc

    for file in range(len(snapshot.files)):
        if snapshot.files.partition_values(file).get(column, value) != value:
            continue
        with open_stored(snapshot, file) as parquet:
            stored = stored_columns(snapshot, file, [column], parquet.metadata).get(column, column)
            groups = list(_groups_with(parquet, stored, value))
            for batch in batches_of(snapshot, file, parquet, list(dict.fromkeys([column, *wanted])), groups):
                yield from rows_in_utc(batch.filter(pc.equal(batch.column(column), value)))


def _groups_with(parquet: pq.ParquetFile, column: str, value: str) -> Iterator[int]:
    """Finds the row groups whose statistics allow for a value."""
    names = [parquet.metadata.schema.column(i).path for i in range(parquet.metadata.num_columns)]
    place = names.index(column) if column in names else None
    for group in range(parquet.num_row_groups):
        stored = None if place is None else parquet.metadata.row_group(group).column(place).statistics
        if stored is None or not stored.has_min_max or stored.min <= value <= stored.max:
            yield group


def _predictions(table: Table) -> Snapshot:
    snapshot = open_snapshot(table)
    missing = [name for name in SHARED if name not in snapshot.schema]
    if missing:
        raise PredictionsSchemaError(
            f"{snapshot.location} has no column {missing[0]!r}, so it is not a predictions table; give the table that "
            "lakelens.score has written"
        )
    return snapshot


def _traced(client: MlflowClient, row: Mapping[str, Any], storage_options: Mapping[str, str] | None) -> PredictionTrace:
    missing: list[str] = []
    source = _source_of(row, storage_options, missing)
    run = run_of_digest(client, row["checkpoint_digest"])
    if run is None:
        missing.append(
            f"run: the store has no run whose checkpoint has digest {row['checkpoint_digest']}; give the store "
            "of the training (--tracking-uri)"
        )
        return PredictionTrace(row, source, None, {}, None, (), missing)
    details = details_of(run, client.get_experiment(run.info.experiment_id).name)
    versions = client.search_model_versions(f"run_id = {quoted(run.info.run_id)}")
    return PredictionTrace(
        prediction=row,
        source=source,
        run=details,
        code={
            "entrypoint": details.summary.entrypoint,
            "git_commit": details.tags.get("mlflow.source.git.commit"),
            "git_dirty": details.tags.get("lakelens.git_dirty"),
            "files": f"{details.artifacts.rstrip('/')}/code",
        },
        trained_on=f"{details.summary.table}@{details.summary.version}",
        registered=[f"models:/{one.name}/{one.version}" for one in versions],
        missing=missing,
    )


def _source_of(row: Mapping[str, Any], storage_options: Mapping[str, str] | None, missing: list[str]) -> dict[str, Any]:
    """Finds the row of the image in the scored version."""
    name = f"{row['table']}@{row['version']}"
    try:
        snapshot = open_snapshot(Table(row["table"], dict(storage_options or {}), row["version"]))
        found = next(rows_with(snapshot, "path", row["path"], _SOURCE), None)
    except LakelensError as error:
        if isinstance(error, TrackingError):
            raise
        missing.append(f"source image: {error}")
        return {}
    mark = mark_of(row["checkpoint_digest"], row["table"], snapshot.table_id, row["version"])
    if not str(row["batch_id"]).startswith(mark):
        missing.append(f"source image: {name} is not the table that was scored; it was written again")
        return {}
    if found is None:
        missing.append(f"source image: {name} has no row whose path is {row['path']!r}")
        return {}
    return found


def as_facts(trace: PredictionTrace) -> dict[str, Any]:
    """Writes a trace as JSON values in the order from the prediction to its origins."""
    run = trace.run
    facts: dict[str, Any] = {
        "prediction": dict(trace.prediction),
        "source_image": dict(trace.source),
        "model": {
            "uri": trace.prediction["model_uri"],
            "digest": trace.prediction["checkpoint_digest"],
            "registered": list(trace.registered),
        },
    }
    if run is not None:
        facts["run"] = dataclasses.asdict(run.summary)
        facts["config"] = dict(run.params)
        facts["code"] = dict(trace.code)
        facts["trained_on"] = {"table": trace.trained_on, "rows": dict(run.rows)}
    return {**facts, "missing": list(trace.missing)}
