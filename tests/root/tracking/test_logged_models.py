"""Rules of the MLflow model of a run."""

from __future__ import annotations

import pytest
from mlflow_stores import log_bare_model

from lakelens.errors import TrackingError
from lakelens.tracking.logged_models import register_model
from lakelens.tracking.run_writer import RunWriter
from lakelens.tracking.runs import DIGEST_TAG, open_client, tracked_run

pytestmark = pytest.mark.system


def test_a_registered_alias_leads_to_the_model_of_the_run(store, tmp_path):
    versions = []
    for digest in ("d1", "d2"):
        with tracked_run(store, "registered") as run, RunWriter(run, tmp_path) as writer:
            writer.set_tags({DIGEST_TAG: digest})
            for _ in range(2):  # one that is logged twice is one
                writer.add(lambda client, run_id, digest=digest: log_bare_model(client, run_id, digest, tmp_path))
            writer.finish()
        versions.append(register_model(run.run_id, "digits", alias="champion", tracking_uri=store))
        versions.append(register_model(run.run_id, "digits", tracking_uri=store))  # as a job that was killed after it
    assert versions == [1, 1, 2, 2]
    champion = open_client(store).get_model_version_by_alias("digits", "champion")
    assert (champion.run_id, champion.tags[DIGEST_TAG]) == (run.run_id, "d2")
    (output,) = open_client(store).get_run(run.run_id).outputs.model_outputs
    assert champion.source == open_client(store).get_logged_model(output.model_id).artifact_location


def test_a_run_without_model_is_not_registered(store):
    with tracked_run(store, "empty") as run:
        pass
    with pytest.raises(TrackingError, match=f"run {run.run_id} has no model.*its status is FINISHED"):
        register_model(run.run_id, "digits", tracking_uri=store)
    with pytest.raises(TrackingError, match="register the model of run no-such-run"):
        register_model("no-such-run", "digits", tracking_uri=store)
