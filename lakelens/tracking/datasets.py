"""The table version that a run reads, and the tables that its model has scored, as MLflow's dataset and as tags."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ..errors import VersionNotFoundError
from .run_values import TAG_LIMIT
from .runs import TABLE_ID_TAG, TABLE_TAG, VERSION_TAG, RunReference, as_tracking_errors, open_client

_SOURCE_TYPE = "delta_table"
_DIGEST_LENGTH = 36  # MLflow's limit


@dataclass(frozen=True)
class TableVersion:
    """A run's record of the table version that it reads."""

    location: str  # Path or URI of the table
    version: int  # The version that is read
    digest: str  # Identifies the version's active files; 36 characters at most
    rows: Mapping[str, int]  # Rows per purpose, as in {"train": 800, "validation": 100}
    table_id: str  # The table's own id, which a table that is created in its place does not share

    @property
    def name(self) -> str:
        """The table's own name, such as `images@1`."""
        return f"{self.location.rstrip('/').rpartition('/')[2] or self.location}@{self.version}"


def log_table(run: RunReference, table: TableVersion) -> None:
    """Records the table version as the run's MLflow dataset, and as tags that runs can be searched by."""
    client = open_client(run.tracking_uri)
    with as_tracking_errors(run.tracking_uri, f"record {table.name} in run {run.run_id}"):
        from mlflow.entities import Dataset, DatasetInput, InputTag
        from mlflow.exceptions import MlflowException

        # Written here and not by MLflow's DeltaDatasetSource, which leaves out version 0 (mlflow 3.17: `if version`).
        source = json.dumps({"path": table.location, "delta_table_version": table.version})
        dataset = Dataset(
            name=table.name,
            digest=table.digest[:_DIGEST_LENGTH],
            source_type=_SOURCE_TYPE,
            source=source,
            profile=json.dumps({"num_rows": sum(table.rows.values()), "rows": dict(table.rows)}),
        )
        context = InputTag("mlflow.data.context", "training")
        given = [DatasetInput(dataset=dataset, tags=[context])]
        try:
            client.log_inputs(run.run_id, datasets=given)
        except MlflowException:
            # MLflow looks for the dataset and then adds it: of two runs that do so at once, one fails (mlflow 3.17).
            client.log_inputs(run.run_id, datasets=given)
        client.set_tag(run.run_id, TABLE_TAG, table.location[:TAG_LIMIT])
        client.set_tag(run.run_id, VERSION_TAG, str(table.version))
        client.set_tag(run.run_id, TABLE_ID_TAG, table.table_id)


def require_same_files(tracking_uri: str, run_id: str, table: TableVersion) -> None:
    """Checks that a version still has the files that a run has recorded: its number alone may be of another table."""
    client = open_client(tracking_uri)
    with as_tracking_errors(tracking_uri, f"read what run {run_id} was trained on"):
        inputs = client.get_run(run_id).inputs
    recorded = [one.dataset for one in (inputs.dataset_inputs if inputs is not None else ())]
    digests = [one.digest for one in recorded if (one.source_type, one.name) == (_SOURCE_TYPE, table.name)]
    if digests and table.digest[:_DIGEST_LENGTH] not in digests:
        raise VersionNotFoundError(
            f"{table.location}@{table.version} has other files than when run {run_id} read it: the table was deleted "
            "and written again, or replaced by a copy. Put the old table back, or start a new run"
        )


logger = logging.getLogger(__name__)

SCORING_TAG_PREFIX = "lakelens.scored."


@dataclass(frozen=True)
class Scoring:
    """One version of an image table whose predictions are in a predictions table."""

    predictions: str  # Location of the predictions table
    version: int  # Version of the predictions table that the last scoring left
    table: str  # Location of the image table
    table_version: int  # The version of it that was scored
    scored_at: str  # When, in ISO 8601

    @property
    def tag(self) -> str:
        """The tag's name: scoring the same again replaces what was recorded."""
        place = "\n".join((self.predictions, self.table, str(self.table_version)))
        return SCORING_TAG_PREFIX + hashlib.sha256(place.encode()).hexdigest()[:16]


def record_scoring(tracking_uri: str, run_id: str, scoring: Scoring) -> None:
    """Writes a scoring on its run; the scoring itself is done, so that a store which refuses is a warning."""
    text = json.dumps(asdict(scoring))
    try:
        if len(text) > TAG_LIMIT:
            raise ValueError(f"the tables' paths take {len(text)} characters, a tag {TAG_LIMIT}")
        open_client(tracking_uri).set_tag(run_id, scoring.tag, text)
    except Exception as error:  # noqa: BLE001  stores raise their own SDKs' errors
        logger.warning("run %s does not record that %s was scored: %s", run_id, scoring.table, error)


def scorings_of(tags: Mapping[str, str]) -> list[Scoring]:
    """Reads the scorings in a run's tags, the latest first; other tags are skipped."""
    found = []
    for name, text in tags.items():
        if name.startswith(SCORING_TAG_PREFIX):
            try:
                found.append(Scoring(**json.loads(text)))
            except (ValueError, TypeError):
                logger.warning("tag %s is not the record of a scoring: %s", name, text[:200])
    return sorted(found, key=lambda scoring: scoring.scored_at, reverse=True)
