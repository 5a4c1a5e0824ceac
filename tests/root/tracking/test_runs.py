"""Rules of the MLflow layer, on real stores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mlflow_stores import put_store

from lakelens.errors import InvalidArgumentError, ModelNotFoundError, TrackingError
from lakelens.tracking.datasets import TableVersion, log_table
from lakelens.tracking.run_writer import RecordFile, RunRecord, RunWriter
from lakelens.tracking.runs import (
    DIGEST_TAG,
    FAILURE_TAG,
    RunReference,
    local_store_path,
    open_client,
    resolve_tracking_uri,
    tracked_run,
)
from lakelens.training.checkpoints.references import resolve_model
from lakelens.training.record.code_record import record_code
from lakelens.training.trials.entrypoint import EntryPoint

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("given", "environment", "resolved"),
    [
        ("http://given:5000", {"MLFLOW_TRACKING_URI": "http://other"}, "http://given:5000"),
        (None, {"MLFLOW_TRACKING_URI": "http://other"}, "http://other"),
        (None, {}, "sqlite:///{here}/mlflow.db"),
        (None, {"DATABRICKS_RUNTIME_VERSION": "15.4"}, "databricks"),
        ("sqlite:///runs.db", {}, "sqlite:///{here}/runs.db"),
        ("sqlite:////abs/runs.db", {}, "sqlite:////abs/runs.db"),
        ("mlruns", {}, "file://{here}/mlruns"),
        ("file:./my%20runs", {}, "file://{here}/my%20runs"),
        ("file:///abs/mlruns", {}, "file:///abs/mlruns"),
        ("databricks", {}, "databricks"),
        ("databricks://profile", {}, "databricks://profile"),
        ("postgresql://host/db", {}, "postgresql://host/db"),
    ],
)
def test_a_store_means_the_same_in_every_process(monkeypatch, tmp_path, given, environment, resolved):
    for name in ("MLFLOW_TRACKING_URI", "DATABRICKS_RUNTIME_VERSION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert resolve_tracking_uri(given) == resolved.format(here=tmp_path)
    assert local_store_path(resolve_tracking_uri("my runs é/50%/mlruns")) == tmp_path / "my runs é/50%/mlruns"


def test_a_run_that_ends_well_is_finished_with_what_was_recorded(store, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "part.bin").write_bytes(b"x" * 10)
    with tracked_run(store, "ends-well", run_name="first", tags={"a": "b"}, params={"epochs": 3}) as run:
        log_table(run, TableVersion("/data/images", 1, "d1", {"train": 8, "validation": 2}, "t1"))
        open_client(store).log_text(run.run_id, "class Mine: ...", "code/mine.py")
        (tmp_path / "records").mkdir()
        records = RecordFile(tmp_path / "records")
        records.add(RunRecord({"loss": 0.5}, step=0))
        with RunWriter(run, tmp_path / "records") as writer:
            records.add(RunRecord({"loss": 0.25}, step=1, params={"rate": 0.1, "long": "x" * 10_000}))
            writer.set_tags({DIGEST_TAG: "abc"})
            writer.add(lambda client, run_id: client.log_artifacts(run_id, str(tmp_path / "files"), "checkpoint"))
            writer.finish()
    assert list((tmp_path / "records").iterdir()) == []
    client = open_client(store)
    found = client.get_run(run.run_id)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "first")
    assert [(m.step, m.value) for m in client.get_metric_history(run.run_id, "loss")] == [(0, 0.5), (1, 0.25)]
    assert found.data.params["epochs"] == "3"
    assert found.data.params["rate"] == "0.1"
    assert found.data.tags["lakelens.version"] == "1"
    assert [file.path for file in client.list_artifacts(run.run_id, "checkpoint")] == ["checkpoint/part.bin"]


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("rank 1 died"), "FAILED"), (KeyboardInterrupt("stopped by hand"), "KILLED")]
)
def test_a_run_whose_job_fails_says_so_and_why(store, error, status):
    with pytest.raises(type(error)), tracked_run(store, "ends-badly"):
        raise error
    client = open_client(store)
    experiment = client.get_experiment_by_name("ends-badly")
    latest = client.search_runs([experiment.experiment_id], order_by=["start_time DESC"])[0]
    assert latest.info.status == status
    assert latest.data.tags[FAILURE_TAG] == f"{type(error).__name__}: {error}"


def test_the_run_that_the_caller_has_active_is_the_parent_in_its_own_store_only(store, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    with mlflow.start_run() as parent, tracked_run(store, "children") as run:
        pass
    tags = open_client(store).get_run(run.run_id).data.tags
    assert tags["mlflow.parentRunId"] == parent.info.run_id
    with tracked_run(store, "children") as run:
        pass
    assert "mlflow.parentRunId" not in open_client(store).get_run(run.run_id).data.tags
    elsewhere = put_store(tmp_path)
    with mlflow.start_run(), tracked_run(elsewhere, "children") as run:
        pass
    assert "mlflow.parentRunId" not in open_client(elsewhere).get_run(run.run_id).data.tags


def test_artifacts_lie_beside_the_local_store_wherever_it_is_opened_from(store, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with tracked_run(store, "beside") as run:
        open_client(store).log_text(run.run_id, "text", "a.txt")
    assert list(Path(store.removeprefix("sqlite:///")).parent.glob("mlartifacts/*/artifacts/a.txt"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("http://me:secret@127.0.0.1:9", r"^http://me:\*\*\*@127\.0\.0\.1:9 did not let us .*refused"),
        ("sqlite:////dev/null/folder/mlflow.db", "did not let us open the store"),
        ("sqlite:///{folder}/no database", "did not let us open the store"),
        ("{silent}", "^{silent} did not let us create a run .*read timeout=1"),
    ],
    ids=["nobody listens", "no folder", "no database", "never answers"],
)
def test_a_store_that_cannot_be_used_is_named_without_its_password(silent_server, tmp_path, place, words):
    (tmp_path / "no database").write_text("not a database, " * 100)
    with pytest.raises(TrackingError, match=words.format(silent=silent_server)) as caught:
        tracked_run(place.format(folder=tmp_path, silent=silent_server), "nowhere").__enter__()
    assert "secret" not in str(caught.value)


def test_uploads_to_and_downloads_from_a_silent_server_end(store, silent_server, tmp_path):
    with pytest.raises(TrackingError, match=r"did not let us store the code .*read timeout=1"):
        record_code(
            RunReference(silent_server, "1", "r1", "here"),
            EntryPoint.parse("lakelens.training.trials.small_cnn:SmallCnn"),
        )
    client, place = open_client(store), f"{silent_server}/api/2.0/mlflow-artifacts/artifacts"
    run = client.create_run(client.create_experiment("kept elsewhere", artifact_location=place))
    with pytest.raises(ModelNotFoundError, match=rf"{place}/.* cannot be fetched: .*read timeout=1"):
        resolve_model(f"runs:/{run.info.run_id}", store)


def test_a_limit_that_the_user_has_set_for_mlflow_stays(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    open_client("http://nowhere:5000")
    assert (os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"], os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]) == ("7", "2")


def test_a_deleted_experiment_is_named_with_the_way_back(store):
    with tracked_run(store, "deleted") as run:
        pass
    open_client(store).delete_experiment(run.experiment_id)
    with pytest.raises(TrackingError, match=f"mlflow experiments restore --experiment-id {run.experiment_id}"):
        tracked_run(store, "deleted").__enter__()


def test_on_databricks_an_experiment_is_a_workspace_path():
    from lakelens.tracking.runs import _experiment_id

    with pytest.raises(InvalidArgumentError, match=r"workspace path, such as /Users/"):
        _experiment_id(None, "databricks", "lakelens")
