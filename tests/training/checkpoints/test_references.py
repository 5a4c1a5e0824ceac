"""Rules of finding a model, with a real MLflow store on disk."""

from __future__ import annotations

import pytest
from mlflow_stores import put_store

from lakelens.errors import CheckpointError, ModelNotFoundError, UsageError
from lakelens.training.checkpoints.checkpoint import write_checkpoint
from lakelens.training.checkpoints.references import resolve_model

pytestmark = pytest.mark.system

METADATA = {
    "input": {"height": 16, "width": 16, "channels": 3},
    "labels": {"0": "red", "1": "green", "2": "blue"},
    "epoch": 1,
}


class Store:
    """A store with one experiment."""

    def __init__(self, folder):
        from lakelens.tracking.runs import open_client

        self.folder = folder
        self.uri = put_store(folder)
        self.client = open_client(self.uri)
        self.experiment = self.client.create_experiment("birds", artifact_location=(folder / "artifacts").as_uri())

    def run(self, *, value=None, goal="val_loss:min", status="FINISHED", weights=b"weights"):
        """A run with a checkpoint and the value of its metric."""
        run_id = self.client.create_run(self.experiment, tags={"lakelens.metric": goal}).info.run_id
        files = {
            "model.keras": lambda path: path.write_bytes(weights) and None,
            "state.json": lambda path: path.write_text("{}") and None,
        }
        kept = write_checkpoint(self.folder / "kept" / run_id, files=files, metadata=METADATA, name="best")
        self.client.log_artifacts(run_id, str(kept.path), "checkpoint")
        if value is not None:
            self.client.log_metric(run_id, f"best_{goal.partition(':')[0]}", value)
        self.client.set_tag(run_id, "lakelens.checkpoint_digest", kept.digest)
        self.client.set_terminated(run_id, status)
        return run_id, kept.digest


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


def test_a_run_leads_to_its_checkpoint_unless_it_was_changed(store, tmp_path):
    run_id, digest = store.run()
    for uri in (f"runs:/{run_id}", f"runs:/{run_id}/checkpoint"):
        found = resolve_model(uri, store.uri)
        assert (found.uri, found.digest, found.run_id) == (uri, digest, run_id)
        assert found.class_names == ["red", "green", "blue"]
    (found.path / "model.keras").write_bytes(b"changed")
    with pytest.raises(CheckpointError, match="sha256"):
        resolve_model(uri, store.uri)
    (tmp_path / "model.pkl").touch()
    with pytest.raises(CheckpointError, match="can run code"):
        resolve_model(tmp_path / "model.pkl")


def test_an_experiment_leads_to_its_best_finished_run(tmp_path):
    store = Store(tmp_path)
    store.run(value=0.5, weights=b"worse")
    store.run(value=0.1, weights=b"failed", status="FAILED")
    store.run(value=float("nan"), weights=b"nan")
    _, best = store.run(value=0.2, weights=b"better")
    for name in (store.experiment, "birds"):
        assert resolve_model(f"experiment:{name}", store.uri).digest == best


def test_runs_of_different_metrics_are_never_compared(tmp_path):
    store = Store(tmp_path)
    store.run(value=0.0006, weights=b"a loss")
    store.run(value=0.25, goal="val_accuracy:max", weights=b"worse")
    _, best = store.run(value=1.0, goal="val_accuracy:max", weights=b"better")
    _, lowest = store.run(value=0.1, goal="val_score:min", weights=b"lowest")
    _, highest = store.run(value=0.9, goal="val_score:max", weights=b"highest")
    known = r"val_accuracy:max \(2\), val_loss:min \(1\), val_score:max \(1\), val_score:min \(1\)"
    for asked, words in {
        "birds": rf"{known}. Name one, as experiment:birds\?metric=val_accuracy$",
        "birds?metric=val_score": r"Name one, as experiment:birds\?metric=val_score:max$",
        "birds?metric=loss": f"no finished run was decided by metric 'loss'; they were by {known}",
        "birds?metric=": "no finished run was decided by metric ''",
    }.items():
        with pytest.raises(ModelNotFoundError, match=words):
            resolve_model(f"experiment:{asked}", store.uri)
    for metric, digest in {"val_accuracy": best, "val_score:min": lowest, "val_score:max": highest}.items():
        for name in (store.experiment, "birds"):
            assert resolve_model(f"experiment:{name}?metric={metric}", store.uri).digest == digest


def test_a_search_leads_to_its_best_trial(store):
    run_id, digest = store.run(weights=b"of the best trial")
    with pytest.raises(ModelNotFoundError, match="this run is not a search"):
        resolve_model(f"search:{run_id}", store.uri)
    store.client.set_tag(run_id, "lakelens.search", "random")
    assert resolve_model(f"search:{run_id}", store.uri).digest == digest
    store.client.delete_tag(run_id, "lakelens.checkpoint_digest")
    with pytest.raises(ModelNotFoundError, match="has no best trial yet"):
        resolve_model(f"search:{run_id}", store.uri)


def test_what_is_unknown_is_named_with_the_way_out(store, tmp_path):
    cases = {
        "runs:/0123456789abcdef": "the tracking store has no run",
        f"runs:/{store.client.create_run(store.experiment).info.run_id}": "missing or not a checkpoint",
        "models:/nobody@champion": "unknown to the registry",
        "models:/nobody": "names no registered model",
        "experiment:nothing": "has no experiment 'nothing'",
        "ftp://host/model": "give runs:/<run id>",
        str(tmp_path / "nothing"): "A model is runs:/<run id>",
    }
    for uri, words in cases.items():
        with pytest.raises(ModelNotFoundError) as caught:
            resolve_model(uri, store.uri)
        assert words in str(caught.value), uri
        assert isinstance(caught.value, UsageError)
