"""The table version that a run reads, as MLflow's dataset and as tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

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
