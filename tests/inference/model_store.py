"""An MLflow store whose runs have checkpoints, as trainings write them."""

from __future__ import annotations

import numpy as np
from colours import METADATA, colour_model, row, save, write_table
from mlflow_stores import log_bare_model, put_store

ROWS = 9


def wrong_for_red(sharpness=8.0):
    """A model that takes red for green."""
    model = colour_model()
    weights = np.array([[0, 1, 0], [0, 1, 0], [0, 0, 1]], np.float32) * sharpness
    model.layers[-1].set_weights([weights, np.zeros(3, np.float32)])
    return model


class Store:
    """A store whose runs have trained on versions of one table."""

    def __init__(self, folder):
        from lakelens.tracking.runs import open_client

        self.folder = folder
        self.uri = put_store(folder)
        self.table = folder / "images"
        self.client = open_client(self.uri)
        self.experiment = self.client.create_experiment("birds", artifact_location=(folder / "artifacts").as_uri())
        write_table(self.table, [row(number) for number in range(ROWS)])

    def run(self, model, version=0, table=None, **metadata):
        """A run that says of itself what a training on the store's table, or another one, does."""
        table = str(table or self.table)
        tags = {"lakelens.table": table, "lakelens.version": str(version)}
        run_id = self.client.create_run(self.experiment, tags=tags).info.run_id
        given = {**METADATA, "table": table, "version": version, "run_id": run_id, **metadata}
        kept = save(model, self.folder / "kept" / run_id, **given)
        self.client.log_artifacts(run_id, str(kept.path), "checkpoint")
        self.client.set_tag(run_id, "lakelens.checkpoint_digest", kept.digest)
        (self.folder / "logged" / run_id).mkdir(parents=True)
        log_bare_model(self.client, run_id, kept.digest, self.folder / "logged" / run_id)
        self.client.log_param(run_id, "epochs", len(self.client.search_runs([self.experiment])))
        self.client.set_terminated(run_id)
        return run_id
