"""The table version that a run reads, as MLflow's dataset and as tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from .runs import TABLE_TAG, TAG_LIMIT, VERSION_TAG, RunReference, as_tracking_errors, open_client


@dataclass(frozen=True)
class TableVersion:
    """A run's record of the table version that it reads."""

    location: str  # Path or URI of the table
    version: int  # The version that is read
    digest: str  # Identifies the version's active files; 36 characters at most
    rows: Mapping[str, int]  # Rows per purpose, as in {"train": 800, "validation": 100}

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
            digest=table.digest[:36],
            source_type="delta_table",
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
